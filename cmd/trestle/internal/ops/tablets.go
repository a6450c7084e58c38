package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/tablet"
)

// An Operator is what the store does for who runs it. engine.Store is one, and so
// is the client of a cluster with the damage that a process of it knows of.
type Operator interface {
	Tablets(ctx context.Context, table string) ([]tablet.Info, error)
	SplitAt(ctx context.Context, table string, key []byte) error
	MergeAt(ctx context.Context, table string, key []byte) error
	FlushTablets(ctx context.Context, table string, rows row.Range) error
	CompactTablets(ctx context.Context, table string, rows row.Range, report func(done, total int64)) error
	DropDamaged(ctx context.Context, table, object string) (tablet.Loss, error)
	VerifyTablets(ctx context.Context, table string, rows row.Range, damaged func(tablet.ObjectDamage), report func(done, total int64)) error
	Damage() []tablet.TableDamage
	Grouper
}

// Admin is the private service for operators, JSON over HTTP below /admin/. It
// knows no users, so whoever reaches it may do all it does.
type Admin struct {
	refuse    string // why it is off, empty if it is on
	loopback  bool   // requests must name a loopback host
	op        atomic.Pointer[Operator]
	elsewhere atomic.Pointer[string] // why there is no op, if there never will be
	jobs      jobs
}

// NewAdmin returns the service for a listener. loopback says that only this
// machine can reach it; a service that others can reach does nothing unless
// insecure says that they may.
func NewAdmin(loopback, insecure bool) *Admin {
	a := &Admin{loopback: loopback && !insecure}
	if !loopback && !insecure {
		a.refuse = "the admin service is for loopback addresses only: set http-listen to one, or insecure to allow others all the same"
	}
	a.jobs.init()
	return a
}

// Start makes the service answer for a store that is open.
func (a *Admin) Start(op Operator) {
	if op != nil {
		a.op.Store(&op)
	}
}

// Elsewhere makes the service answer that what it does is done otherwise.
func (a *Admin) Elsewhere(why string) { a.elsewhere.Store(&why) }

// Close cancels the jobs under way and waits for their end.
func (a *Admin) Close() { a.jobs.close() }

// With returns a handler of what is below /admin/, and of all else by h.
func (a *Admin) With(h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", h)
	handle := func(pattern string, f func(r *http.Request, op Operator) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { a.serve(w, r, f) })
	}
	handle("GET /admin/tablets", a.list)
	handle("POST /admin/tablets/split", a.split)
	handle("POST /admin/tablets/merge", a.merge)
	handle("POST /admin/tablets/drop-damaged", a.dropDamaged)
	for _, what := range []string{"compact", "flush", "verify"} {
		handle("POST /admin/tablets/"+what, a.start(what))
	}
	handle("GET /admin/table", a.describeTable)
	handle("POST /admin/table/create-group", a.changeGroup(createGroup))
	handle("POST /admin/table/set-group", a.changeGroup(setGroup))
	handle("POST /admin/table/delete-group", a.changeGroup(deleteGroup))
	handle("POST /admin/table/assign", a.changeGroup(assign))
	handle("GET /admin/jobs", func(*http.Request, Operator) (any, error) { return map[string]any{"jobs": a.jobs.list()}, nil })
	handle("GET /admin/jobs/{id}", a.job)
	handle("DELETE /admin/jobs/{id}", a.cancel)
	return mux
}

// serve answers one request with what f returns, as JSON.
func (a *Admin) serve(w http.ResponseWriter, r *http.Request, f func(*http.Request, Operator) (any, error)) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	answer, err := func() (any, error) {
		if err := a.admit(r); err != nil {
			return nil, err
		}
		op := a.op.Load()
		if why := a.elsewhere.Load(); why != nil {
			return nil, fault.New(fault.FailedPrecondition, "%s", *why)
		}
		if op == nil {
			return nil, fault.New(fault.Unavailable, "the data directory is still being opened")
		}
		return f(r, *op)
	}()
	status := http.StatusOK
	if err != nil {
		status = statusOf(err)
		answer = map[string]string{"error": err.Error()}
	} else if j, ok := answer.(*Job); ok && r.Method == http.MethodPost {
		status = http.StatusAccepted
		w.Header().Set("Location", "/admin/jobs/"+j.ID)
	}
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(answer)
}

// admit keeps out those who are not to use the service, among them the pages of
// foreign sites in a browser on this machine.
func (a *Admin) admit(r *http.Request) error {
	if a.refuse != "" {
		return fault.New(fault.PermissionDenied, "%s", a.refuse)
	}
	if err := foreign(r, a.loopback); err != nil {
		return err
	}
	if r.Method == http.MethodPost {
		// A form of a web page cannot have this type.
		if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
			return fault.New(fault.Invalid, "the content type must be application/json")
		}
	}
	return nil
}

// foreign tells why a request seems to come from a page of another site.
// loopback says that the host that it names must be this machine.
func foreign(r *http.Request, loopback bool) error {
	if r.Header.Get("Origin") != "" {
		return fault.New(fault.PermissionDenied, "this service is not for browsers")
	}
	if loopback && !loopbackHost(r.Host) {
		return fault.New(fault.PermissionDenied, "host %q is not this machine: ask for localhost or a loopback address", r.Host)
	}
	return nil
}

// NotForeign returns a handler that refuses requests that seem to come from a
// page of another site, in a browser of somebody whom h trusts for where they
// are. loopback says that requests must name a loopback host.
func NotForeign(loopback bool, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := foreign(r, loopback); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func loopbackHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func statusOf(err error) int {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.OutOfRange:
		return http.StatusBadRequest
	case fault.NotFound:
		return http.StatusNotFound
	case fault.PermissionDenied:
		return http.StatusForbidden
	case fault.FailedPrecondition, fault.AlreadyExists, fault.Aborted:
		return http.StatusConflict
	case fault.Unavailable, fault.Fenced:
		return http.StatusServiceUnavailable
	case fault.Exhausted:
		return http.StatusInsufficientStorage
	}
	return http.StatusInternalServerError
}

// Tablet is an tablet.Info in JSON.
type Tablet struct {
	Table string `json:"table"`
	// Tablet is the id in hexadecimal.
	Tablet string `json:"tablet"`
	// Start and End bound the row keys [Start, End), as EscapeKey writes them; an
	// empty End means the end of the table.
	Start string `json:"start"`
	End   string `json:"end"`
	// Bytes are those of SSTables and memtables.
	Bytes         int64 `json:"bytes"`
	MemtableBytes int64 `json:"memtable_bytes"`
	Runs          int   `json:"runs"`
	Files         int   `json:"files"`
	// Redo is the place in the commit log from which a restart would replay.
	Redo string `json:"redo,omitempty"`
	// Server names the tablet server that serves the tablet, in a cluster; empty
	// if none does at the moment.
	Server string `json:"server,omitempty"`
	// Rates are those of the last seconds.
	ReadsPerSecond       float64    `json:"reads_per_second"`
	RowsReadPerSecond    float64    `json:"rows_read_per_second"`
	RowsWrittenPerSecond float64    `json:"rows_written_per_second"`
	BytesPerSecond       float64    `json:"bytes_per_second"`
	LastMajor            *time.Time `json:"last_major,omitempty"`
}

// TabletList is the answer of GET /admin/tablets.
type TabletList struct {
	Tablets []Tablet `json:"tablets"`
}

func (a *Admin) list(r *http.Request, op Operator) (any, error) {
	infos, err := op.Tablets(r.Context(), r.URL.Query().Get("table"))
	if err != nil {
		return nil, err
	}
	out := TabletList{Tablets: []Tablet{}}
	for i := range infos {
		t := &infos[i]
		j := Tablet{
			Table: t.Table, Tablet: strconv.FormatUint(uint64(t.Tablet), 16), Start: EscapeKey(t.Rows.Start), End: EscapeKey(t.Rows.End),
			Bytes: t.Bytes, MemtableBytes: t.MemtableBytes, Runs: t.Runs, Files: t.Files, Redo: t.Redo, Server: t.Server,
			ReadsPerSecond: t.Load.Reads, RowsReadPerSecond: t.Load.RowsRead, RowsWrittenPerSecond: t.Load.RowsWritten, BytesPerSecond: t.Load.Bytes,
		}
		if !t.LastMajor.IsZero() {
			j.LastMajor = &t.LastMajor
		}
		out.Tablets = append(out.Tablets, j)
	}
	return out, nil
}

// Selection is the body of a request that does something to tablets: the one
// that serves Key, or all of the table.
type Selection struct {
	Table string  `json:"table"`
	Key   *string `json:"key,omitempty"` // as EscapeKey writes it
	All   bool    `json:"all,omitempty"`
}

func selection(r *http.Request) (s Selection, key []byte, err error) {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return s, nil, fault.New(fault.Invalid, "decode the request: %w", err)
	}
	if s.Table == "" {
		return s, nil, fault.New(fault.Invalid, "name a table")
	}
	if (s.Key == nil) == !s.All {
		return s, nil, fault.New(fault.Invalid, "give either the key of a row or all")
	}
	if s.Key != nil {
		key, err = UnescapeKey(*s.Key)
	}
	return s, key, err
}

// one is a selection of one tablet.
func one(r *http.Request) (Selection, []byte, error) {
	s, key, err := selection(r)
	if err == nil && s.All {
		err = fault.New(fault.Invalid, "give the key of a row")
	}
	return s, key, err
}

func (a *Admin) split(r *http.Request, op Operator) (any, error) {
	s, key, err := one(r)
	if err == nil {
		err = op.SplitAt(r.Context(), s.Table, key)
	}
	return struct{}{}, err
}

func (a *Admin) merge(r *http.Request, op Operator) (any, error) {
	s, key, err := one(r)
	if err == nil {
		err = op.MergeAt(r.Context(), s.Table, key)
	}
	return struct{}{}, err
}

// Drop is the body of a request to forget a damaged SSTable.
type Drop struct {
	Table  string `json:"table"`
	Object string `json:"object"`
	// Confirm repeats the object: its rows are lost.
	Confirm string `json:"confirm"`
}

// Dropped says what was lost: entries of the rows from First to Last, both
// included.
type Dropped struct {
	First   string `json:"first"`
	Last    string `json:"last"`
	Entries uint64 `json:"entries"`
	Bytes   int64  `json:"bytes"`
}

func (a *Admin) dropDamaged(r *http.Request, op Operator) (any, error) {
	var d Drop
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return nil, fault.New(fault.Invalid, "decode the request: %w", err)
	}
	switch {
	case d.Table == "":
		return nil, fault.New(fault.Invalid, "name a table")
	case d.Object == "":
		return nil, fault.New(fault.Invalid, "name an SSTable")
	case d.Confirm != d.Object:
		return nil, fault.New(fault.FailedPrecondition, "what SSTable %s holds would be lost: confirm that", d.Object)
	}
	loss, err := op.DropDamaged(r.Context(), d.Table, d.Object)
	if err != nil {
		return nil, err
	}
	return Dropped{EscapeKey(loss.First), EscapeKey(loss.Last), loss.Entries, loss.Bytes}, nil
}

// start returns what starts a job.
func (a *Admin) start(what string) func(*http.Request, Operator) (any, error) {
	return func(r *http.Request, op Operator) (any, error) {
		s, key, err := selection(r)
		if err != nil {
			return nil, err
		}
		if _, err := op.Tablets(r.Context(), s.Table); err != nil {
			return nil, err // it says that there is no such table
		}
		rows := row.All
		if !s.All {
			rows = row.Single(key)
		}
		return a.jobs.start(what, s, func(ctx context.Context, j *running) error {
			switch what {
			case "compact":
				return op.CompactTablets(ctx, s.Table, rows, j.report)
			case "flush":
				return op.FlushTablets(ctx, s.Table, rows)
			}
			return op.VerifyTablets(ctx, s.Table, rows, j.damaged, j.report)
		})
	}
}

// job describes a job, after its end or up to "wait" seconds.
func (a *Admin) job(r *http.Request, _ Operator) (any, error) {
	j := a.jobs.find(r.PathValue("id"))
	if j == nil {
		return nil, fault.New(fault.NotFound, "no job %s", r.PathValue("id"))
	}
	if w := r.URL.Query().Get("wait"); w != "" {
		seconds, err := strconv.ParseFloat(w, 64)
		if err != nil || !(seconds >= 0 && seconds <= 60) {
			return nil, fault.New(fault.Invalid, "wait must be between 0 and 60 seconds")
		}
		select {
		case <-j.done:
		case <-time.After(time.Duration(seconds * float64(time.Second))):
		case <-r.Context().Done():
		}
	}
	return j.describe(), nil
}

func (a *Admin) cancel(r *http.Request, _ Operator) (any, error) {
	j := a.jobs.find(r.PathValue("id"))
	if j == nil {
		return nil, fault.New(fault.NotFound, "no job %s", r.PathValue("id"))
	}
	j.cancel()
	return j.describe(), nil
}

// Warnings tells of every SSTable that reads found damaged, a line each.
func (a *Admin) Warnings() []string {
	op := a.op.Load()
	if op == nil {
		return nil
	}
	var out []string
	for _, d := range (*op).Damage() {
		object := d.Object
		if object == "" {
			object = "an SSTable"
		}
		out = append(out, fmt.Sprintf("corruption in %s of tablet %x of %s, rows [%s, %s): %d reads since %s got DATA_LOSS; all other rows are served",
			object, uint64(d.Tablet), d.Table, EscapeKey(d.Rows.Start), EscapeKey(d.Rows.End), d.Reads, d.First.UTC().Format(time.RFC3339)))
	}
	return out
}

// EscapeKey writes a row key as text: printable ASCII as it is except for the
// backslash, which is doubled, every other byte as \xNN.
func EscapeKey(key []byte) string {
	var b strings.Builder
	for _, c := range key {
		switch {
		case c == '\\':
			b.WriteString(`\\`)
		case c >= ' ' && c <= '~':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	return b.String()
}

var errEscape = errors.New(`in a key a backslash must be followed by a second one or by x and two hexadecimal digits`)

// UnescapeKey reads what EscapeKey wrote. Bytes beyond ASCII may stand for
// themselves too.
func UnescapeKey(s string) ([]byte, error) {
	var out []byte
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			out = append(out, s[i])
			continue
		}
		switch {
		case strings.HasPrefix(s[i+1:], `\`):
			out = append(out, '\\')
			i++
		case strings.HasPrefix(s[i+1:], "x") && len(s) >= i+4:
			v, err := strconv.ParseUint(s[i+2:i+4], 16, 8)
			if err != nil {
				return nil, fault.New(fault.Invalid, "%w", errEscape)
			}
			out = append(out, byte(v))
			i += 3
		default:
			return nil, fault.New(fault.Invalid, "%w", errEscape)
		}
	}
	return out, nil
}
