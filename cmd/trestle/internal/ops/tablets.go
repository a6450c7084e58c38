package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/tablet"
	"github.com/trestledb/trestle/gateway/auth"
)

// An Operator is what the store does for who runs it: the client of a cluster, with
// the damage that a process of it knows of.
type Operator interface {
	// EachTablet calls each with the tablets of a table, or of all, by table and key. A table
	// may be given by the last part of its name. What each gets is its own until it returns.
	EachTablet(ctx context.Context, table string, each func(*tablet.Info) error) error
	// TableNamed returns the full name of a table, which may be given by the last part of it.
	TableNamed(ctx context.Context, table string) (string, error)
	// TableNames returns the full names of all tables, without a look at their tablets.
	TableNames() []string
	SplitAt(ctx context.Context, table string, key []byte) error
	MergeAt(ctx context.Context, table string, key []byte) error
	FlushTablets(ctx context.Context, table string, rows row.Range) error
	CompactTablets(ctx context.Context, table string, rows row.Range, report func(done, total int64)) error
	DropDamaged(ctx context.Context, table, object string) (tablet.Loss, error)
	VerifyTablets(ctx context.Context, table string, rows row.Range, damaged func(tablet.ObjectDamage), report func(done, total int64)) error
	Damage() []tablet.TableDamage
	// SplitKey returns the row at which the tablet that serves key is best split; ok is
	// false if it has too few.
	SplitKey(ctx context.Context, table string, key []byte) (at []byte, ok bool, err error)
	// MoveTablet moves the tablet that serves key to the server of a name, where it is
	// left if it is to stay.
	MoveTablet(ctx context.Context, table string, key []byte, server string, stay bool) error
	// TabletOf returns the full name of the table of a tablet, and its rows.
	TabletOf(ctx context.Context, id metadata.TabletID) (table string, rows row.Range, err error)
	// TabletAt returns the id of the tablet that serves key.
	TabletAt(ctx context.Context, table string, key []byte) (metadata.TabletID, error)
	Fleet
	Grouper
	Exporter
}

// Admin is the service for operators, JSON over HTTP below /admin/. What a
// request asks for has a Bigtable RPC that asks for the same permissions.
type Admin struct {
	open      atomic.Pointer[opened]
	elsewhere atomic.Pointer[string] // why nothing is open, if nothing ever will be
	slow      atomic.Pointer[SlowLog]
	heat      atomic.Pointer[HeatReader]
	history   atomic.Pointer[History]
	self      atomic.Pointer[Self]
	settings  atomic.Pointer[any]
	jobs      jobs
	checking  sync.Mutex // held while a view is compared with its query
}

// opened is a store and who may do something to it.
type opened struct {
	op  Operator
	who *auth.Auth
}

// NewAdmin returns the service of a store that is yet to be opened.
func NewAdmin() *Admin {
	a := new(Admin)
	a.jobs.init()
	return a
}

// Start makes the service answer for a store that is open. who knows the callers
// and what they may do.
func (a *Admin) Start(op Operator, who *auth.Auth) {
	if op != nil {
		a.open.Store(&opened{op, who})
	}
}

// ShowSlow makes the service answer with the slow requests of l.
func (a *Admin) ShowSlow(l *SlowLog) { a.slow.Store(l) }

// Elsewhere makes the service answer that what it does is done otherwise.
func (a *Admin) Elsewhere(why string) { a.elsewhere.Store(&why) }

// Close cancels the jobs under way and waits for their end.
func (a *Admin) Close() { a.jobs.close() }

// The RPCs that ask for the permissions that requests do: tables.get, update and
// delete, and backups.create with read.
const (
	toSee    = adminpb.BigtableTableAdmin_GetTable_FullMethodName
	toChange = adminpb.BigtableTableAdmin_UpdateTable_FullMethodName
	toLose   = adminpb.BigtableTableAdmin_DeleteTable_FullMethodName
	toCopy   = adminpb.BigtableTableAdmin_CopyBackup_FullMethodName
)

// Routes are what is below /admin/.
func (a *Admin) Routes() (out []Route) {
	handle := func(pattern, rpc string, f func(q *request) (any, error)) {
		out = append(out, Route{pattern, LoggedIn, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.serve(w, r, rpc, f) })})
	}
	handle("GET /admin/tables", toSee, a.listTables)
	handle("GET /admin/tablets", toSee, a.list)
	handle("POST /admin/tablets/split", toChange, a.split)
	handle("POST /admin/tablets/merge", toChange, a.merge)
	handle("POST /admin/tablets/move", toChange, a.move)
	handle("POST /admin/tablets/drop-damaged", toLose, a.dropDamaged)
	for _, what := range []string{"compact", "flush", "verify"} {
		handle("POST /admin/tablets/"+what, toChange, a.start(what))
	}
	handle("GET /admin/servers", toSee, a.listServers)
	handle("POST /admin/servers/drain", toChange, a.drain)
	handle("POST /admin/servers/undrain", toChange, a.undrain)
	handle("GET /admin/views", toSeeView, a.listViews)
	handle("POST /admin/views/wait", toSeeView, a.waitView)
	handle("POST /admin/views/check", toCheckView, a.checkView)
	handle("GET /admin/table", toSee, a.describeTable)
	handle("POST /admin/table/create-group", toChange, a.changeGroup(createGroup))
	handle("POST /admin/table/set-group", toChange, a.changeGroup(setGroup))
	handle("POST /admin/table/delete-group", toChange, a.changeGroup(deleteGroup))
	handle("POST /admin/table/assign", toChange, a.changeGroup(assign))
	handle("GET /admin/backups", toSeeBackup, a.listBackups)
	handle("POST /admin/backups/export", toCopy, a.exportBackup)
	handle("POST /admin/backups/import", toCopy, a.importBackup)
	handle("GET /admin/slow", toSee, a.listSlow)
	handle("GET /admin/principals", toSee, a.listPrincipals)
	handle("GET /admin/keyvis", toSee, a.heatMap)
	handle("GET /admin/history", toSee, a.listHistory)
	handle("GET /admin/processes", toSee, a.listProcesses)
	handle("GET /admin/debug", toChange, a.collectAll)
	handle("GET /admin/settings", toSee, a.listSettings)
	handle("GET /admin/jobs", toSee, a.listJobs)
	handle("GET /admin/jobs/{id}", toSee, a.job)
	handle("DELETE /admin/jobs/{id}", toChange, a.cancel)
	return out
}

// A request is one of a caller who is known.
type request struct {
	*http.Request
	op     Operator
	who    *auth.Auth
	caller *auth.Request
}

// table returns the full name of a table to which the caller may do what it asks
// for.
func (q *request) table(name string) (string, error) {
	if strings.HasPrefix(name, "projects/") {
		return name, q.caller.On(name)
	}
	full, err := q.op.TableNamed(q.Context(), name)
	if err == nil {
		err = q.caller.On(resourceOf(full))
	}
	if err != nil {
		return "", q.caller.Missing(name, err)
	}
	return full, nil
}

// sees tells whether the caller may know of a table.
func (q *request) sees(table string) (bool, error) {
	return q.who.Sees(q.caller.Context(), resourceOf(table))
}

// resourceOf returns what the policies about a table are about. METADATA is the
// system's, so that it is root's unless a policy says otherwise.
func resourceOf(table string) string {
	if strings.HasPrefix(table, "projects/") {
		return table
	}
	return "projects/" + auth.SystemProject
}

// serve answers one request with what f returns, as JSON.
func (a *Admin) serve(w http.ResponseWriter, r *http.Request, rpc string, f func(*request) (any, error)) {
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	answer, err := a.answer(r, rpc, f)
	status := http.StatusOK
	if err != nil {
		if status = statusOf(err); status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		answer = map[string]string{"error": err.Error()}
	} else if j, ok := answer.(*Job); ok && r.Method == http.MethodPost {
		status = http.StatusAccepted
		w.Header().Set("Location", "/admin/jobs/"+j.ID)
	}
	writeJSON(w, status, answer)
}

func (a *Admin) answer(r *http.Request, rpc string, f func(*request) (any, error)) (answer any, err error) {
	if r.Method == http.MethodPost {
		// A form of a web page cannot have this type.
		if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
			return nil, fault.New(fault.Invalid, "the content type must be application/json")
		}
	}
	if why := a.elsewhere.Load(); why != nil {
		return nil, fault.New(fault.FailedPrecondition, "%s", *why)
	}
	o := a.open.Load()
	if o == nil {
		return nil, fault.New(fault.Unavailable, "the data directory is still being opened")
	}
	caller, err := o.who.Begin(r.Context(), auth.Peer{Authorization: r.Header.Values("Authorization"), Addr: r.RemoteAddr}, rpc, r.Pattern)
	if err != nil {
		return nil, err
	}
	defer func() { caller.Done(err) }()
	return f(&request{r, o.op, o.who, caller})
}

func writeJSON(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(answer)
}

func statusOf(err error) int {
	if auth.Unauthenticated(err) && fault.KindOf(err) == fault.PermissionDenied {
		return http.StatusUnauthorized
	}
	switch fault.KindOf(err) {
	case fault.Invalid, fault.OutOfRange:
		return http.StatusBadRequest
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Unimplemented:
		return http.StatusNotImplemented
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
	// Changes are its change files; nil if its table has no stream.
	Changes *KeptChanges `json:"changes,omitempty"`
}

// KeptChanges are the change files of a tablet. All changes from Since on are kept; Newest is
// the commit time of the last one that is in a file.
type KeptChanges struct {
	Files  int        `json:"files"`
	Bytes  int64      `json:"bytes"`
	Since  time.Time  `json:"since"`
	Newest *time.Time `json:"newest,omitempty"`
}

// TabletList is the answer of GET /admin/tablets.
type TabletList struct {
	Tablets []Tablet `json:"tablets"`
	// Total is how many there are, of which a page has some, and Sum is of them all.
	Total int `json:"total"`
	Sum   Sum `json:"sum"`
}

// list shows the tablets of one table, or of all that the caller may know of: all of
// them, or a page.
func (a *Admin) list(q *request) (any, error) {
	page, err := pageOf(q)
	if err != nil {
		return nil, err
	}
	bound := time.Duration(0)
	if page.limit > 0 {
		bound = lookTime
	}
	out := TabletList{Tablets: []Tablet{}}
	some := paged[tablet.Info]{page: page, busy: func(t *tablet.Info) busy { return busy{t.Load.RowsRead + t.Load.RowsWritten, t.Bytes} }}
	err = q.eachTablet(bound, func(t *tablet.Info) {
		out.Sum.add(t)
		some.add(t)
	})
	if err != nil {
		return nil, err
	}
	out.Total = some.total
	for _, t := range some.on() {
		out.Tablets = append(out.Tablets, tabletOf(&t))
	}
	return out, nil
}

// eachTablet calls each with the tablets of the table that a request names, or of all that its
// caller may know of, by table and key. It gives up after bound, if that is not 0. What each
// gets is its own until it returns.
func (q *request) eachTablet(bound time.Duration, each func(*tablet.Info)) error {
	table := q.URL.Query().Get("table")
	if table != "" {
		var err error
		if table, err = q.table(table); err != nil {
			return err
		}
	}
	ctx := q.Context()
	if bound > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, bound)
		defer cancel()
	}
	last, sees := table, table != "" // the caller may know of the named one
	err := q.op.EachTablet(ctx, table, func(t *tablet.Info) (err error) {
		if t.Table != last {
			if sees, err = q.sees(t.Table); err != nil {
				return err
			}
			last = t.Table
		}
		if sees {
			each(t)
		}
		return nil
	})
	if err != nil && q.Context().Err() == nil && ctx.Err() != nil {
		err = fault.New(fault.Unavailable, "the tablets were not listed within %v: a tablet server does not answer, and until another has taken over what it serves, METADATA cannot be read", bound)
	}
	return err
}

func tabletOf(t *tablet.Info) Tablet {
	j := Tablet{
		Table: t.Table, Tablet: t.Tablet.String(), Start: EscapeKey(t.Rows.Start), End: EscapeKey(t.Rows.End),
		Bytes: t.Bytes, MemtableBytes: t.MemtableBytes, Runs: t.Runs, Files: t.Files, Redo: t.Redo, Server: t.Server,
		ReadsPerSecond: t.Load.Reads, RowsReadPerSecond: t.Load.RowsRead, RowsWrittenPerSecond: t.Load.RowsWritten, BytesPerSecond: t.Load.Bytes,
	}
	if !t.LastMajor.IsZero() {
		j.LastMajor = &t.LastMajor
	}
	if k := t.Changes; !k.Since.IsZero() {
		j.Changes = &KeptChanges{Files: k.Files, Bytes: k.Bytes, Since: k.Since}
		if !k.Newest.IsZero() {
			j.Changes.Newest = &k.Newest
		}
	}
	return j
}

// decode reads the body of a request.
func (q *request) decode(v any) error {
	d := json.NewDecoder(q.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fault.New(fault.Invalid, "decode the request: %w", err)
	}
	return nil
}

// Selection is the body of a request that does something to tablets: to the one
// with the id Tablet, the one of Table that serves Key, or all of Table.
type Selection struct {
	Table string `json:"table"`
	// Tablet is an id in hexadecimal, as Tablet.Tablet.
	Tablet string  `json:"tablet,omitempty"`
	Key    *string `json:"key,omitempty"` // as EscapeKey writes it
	All    bool    `json:"all,omitempty"`
}

// selected is a Selection after its table was found.
type selected struct {
	table string    // its full name
	rows  row.Range // of the tablet that was given by its id; one row, or all, if not
	key   []byte    // a row that the tablet serves
}

// find returns what a selection means, of a table to which the caller may do what
// it asks for. The audit log names the tablet.
func (q *request) find(s *Selection) (out selected, err error) {
	if s.Tablet != "" {
		q.caller.Note("tablet", s.Tablet)
		if s.Table != "" || s.All {
			return out, fault.New(fault.Invalid, "give either the id of a tablet or its table")
		}
		id, err := strconv.ParseUint(s.Tablet, 16, 64)
		if err != nil {
			return out, fault.New(fault.Invalid, "%q is not the id of a tablet: trestle tablet list prints them", s.Tablet)
		}
		out.table, out.rows, err = q.op.TabletOf(q.Context(), metadata.TabletID(id))
		if err == nil {
			err = q.caller.On(resourceOf(out.table))
		}
		if err != nil {
			return selected{}, q.caller.Missing("tablet "+s.Tablet, err)
		}
		out.key, s.Table = out.rows.Start, out.table
		return out, nil
	}
	if s.Table == "" {
		return out, fault.New(fault.Invalid, "name a tablet by its id, or a table")
	}
	if (s.Key == nil) == !s.All {
		return out, fault.New(fault.Invalid, "give either the key of a row or all")
	}
	out.rows = row.All
	if s.Key != nil {
		if out.key, err = UnescapeKey(*s.Key); err != nil {
			return out, err
		}
		out.rows = row.Single(out.key)
	}
	if out.table, err = q.table(s.Table); err != nil || s.Key == nil {
		return out, err
	}
	id, err := q.op.TabletAt(q.Context(), out.table, out.key)
	if err == nil {
		q.caller.Note("tablet", id.String())
	}
	return out, err
}

// one is find of a selection of one tablet. A key of one that is given by its id
// is left to the caller.
func (q *request) one(s *Selection) (selected, error) {
	if s.All {
		return selected{}, fault.New(fault.Invalid, "give the id of a tablet, or the key of a row")
	}
	return q.find(s)
}

// Changed is the answer to a split, merge or move: of the tablet of Table that
// served Key. A split made Key the first row of the second part.
type Changed struct {
	Table  string `json:"table"`
	Key    string `json:"key"`
	Server string `json:"server,omitempty"` // that a tablet was moved to
}

func (a *Admin) split(q *request) (any, error) {
	var s Selection
	if err := q.decode(&s); err != nil {
		return nil, err
	}
	t, err := q.one(&s)
	if err != nil {
		return nil, err
	}
	at, ok := t.key, true
	switch {
	case s.Tablet == "":
	case s.Key != nil:
		if at, err = UnescapeKey(*s.Key); err == nil && !t.rows.Contains(at) {
			err = fault.New(fault.Invalid, "tablet %s serves the rows [%s, %s), and not %s", s.Tablet, EscapeKey(t.rows.Start), EscapeKey(t.rows.End), *s.Key)
		}
	default:
		at, ok, err = q.op.SplitKey(q.Context(), t.table, t.key)
	}
	if err == nil && !ok {
		err = fault.New(fault.FailedPrecondition, "tablet %s is too small to tell where its middle is: give --key, or flush it first", s.Tablet)
	}
	if err == nil {
		err = q.op.SplitAt(q.Context(), t.table, at)
	}
	return Changed{Table: t.table, Key: EscapeKey(at)}, err
}

// notSplit refuses a key beside the id of a tablet, which only a split takes.
func notSplit(s *Selection) error {
	if s.Tablet != "" && s.Key != nil {
		return fault.New(fault.Invalid, "give either the id of a tablet or the key of a row")
	}
	return nil
}

func (a *Admin) merge(q *request) (any, error) {
	var s Selection
	err := q.decode(&s)
	if err == nil {
		err = notSplit(&s)
	}
	if err != nil {
		return nil, err
	}
	t, err := q.one(&s)
	if err == nil {
		err = q.op.MergeAt(q.Context(), t.table, t.key)
	}
	return Changed{Table: t.table, Key: EscapeKey(t.key)}, err
}

// Move is the body of a request to move a tablet.
type Move struct {
	Selection
	Server string `json:"server"`
	// Pin leaves it there until another move.
	Pin bool `json:"pin,omitempty"`
}

func (a *Admin) move(q *request) (any, error) {
	var m Move
	err := q.decode(&m)
	if err == nil {
		err = notSplit(&m.Selection)
	}
	if err == nil && m.Server == "" {
		err = fault.New(fault.Invalid, "name a server")
	}
	if err != nil {
		return nil, err
	}
	q.caller.Note("server", m.Server)
	t, err := q.one(&m.Selection)
	if err == nil {
		err = q.op.MoveTablet(q.Context(), t.table, t.key, m.Server, m.Pin)
	}
	return Changed{Table: t.table, Key: EscapeKey(t.key), Server: m.Server}, err
}

// Drop is the body of a request to forget a damaged SSTable.
type Drop struct {
	// Table is that of the SSTable; Tablet, an id, stands for its table.
	Table  string `json:"table"`
	Tablet string `json:"tablet,omitempty"`
	Object string `json:"object"`
	// Confirm repeats the object: its rows are lost.
	Confirm string `json:"confirm"`
}

// Dropped says what was lost: entries of the rows from First to Last, both
// included.
type Dropped struct {
	Table   string `json:"table"`
	First   string `json:"first"`
	Last    string `json:"last"`
	Entries uint64 `json:"entries"`
	Bytes   int64  `json:"bytes"`
}

func (a *Admin) dropDamaged(q *request) (any, error) {
	var d Drop
	if err := q.decode(&d); err != nil {
		return nil, err
	}
	switch {
	case d.Object == "":
		return nil, fault.New(fault.Invalid, "name an SSTable")
	case d.Confirm != d.Object:
		return nil, fault.New(fault.FailedPrecondition, "what SSTable %s holds would be lost: confirm that", d.Object)
	}
	q.caller.Note("object", d.Object)
	t, err := q.find(&Selection{Table: d.Table, Tablet: d.Tablet, All: d.Tablet == ""})
	if err != nil {
		return nil, err
	}
	loss, err := q.op.DropDamaged(q.Context(), t.table, d.Object)
	if err != nil {
		return nil, err
	}
	return Dropped{t.table, EscapeKey(loss.First), EscapeKey(loss.Last), loss.Entries, loss.Bytes}, nil
}

// start returns what starts a job.
func (a *Admin) start(what string) func(*request) (any, error) {
	return func(q *request) (any, error) {
		var s Selection
		err := q.decode(&s)
		if err == nil {
			err = notSplit(&s)
		}
		if err != nil {
			return nil, err
		}
		t, err := q.find(&s)
		if err != nil {
			return nil, err
		}
		if _, err := q.op.TableNamed(q.Context(), t.table); err != nil {
			return nil, err // it says that there is no such table
		}
		if s.Tablet != "" {
			t.rows = row.Single(t.key) // by which it is looked up
		}
		op := q.op
		return a.jobs.start(Job{What: what, Selection: s}, t.table, func(ctx context.Context, j *running) error {
			switch what {
			case "compact":
				return op.CompactTablets(ctx, t.table, t.rows, j.report)
			case "flush":
				return op.FlushTablets(ctx, t.table, t.rows)
			}
			return op.VerifyTablets(ctx, t.table, t.rows, j.damaged, j.report)
		})
	}
}

// jobOf returns the job that a request names, which its caller may do something to.
func (a *Admin) jobOf(q *request) (*running, error) {
	id := q.PathValue("id")
	q.caller.Note("job", id)
	j := a.jobs.find(id)
	if j == nil {
		return nil, q.caller.Missing("jobs/"+id, fault.New(fault.NotFound, "no job %s", id))
	}
	if err := q.caller.On(resourceOf(j.table)); err != nil {
		return nil, q.caller.Missing("jobs/"+id, err)
	}
	return j, nil
}

// job describes a job, after its end or up to "wait" seconds.
func (a *Admin) job(q *request) (any, error) {
	j, err := a.jobOf(q)
	if err != nil {
		return nil, err
	}
	if w := q.URL.Query().Get("wait"); w != "" {
		seconds, err := strconv.ParseFloat(w, 64)
		if err != nil || !(seconds >= 0 && seconds <= 60) {
			return nil, fault.New(fault.Invalid, "wait must be between 0 and 60 seconds")
		}
		select {
		case <-j.done:
		case <-time.After(time.Duration(seconds * float64(time.Second))):
		case <-q.Context().Done():
		}
	}
	return j.describe(), nil
}

// listJobs shows the jobs on tables that the caller may know of.
func (a *Admin) listJobs(q *request) (any, error) {
	out := []*Job{}
	for _, j := range a.jobs.all() {
		ok, err := q.sees(j.table)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, j.describe())
		}
	}
	return map[string]any{"jobs": out}, nil
}

func (a *Admin) cancel(q *request) (any, error) {
	j, err := a.jobOf(q)
	if err != nil {
		return nil, err
	}
	j.cancel()
	return j.describe(), nil
}

// Warnings tells of every SSTable that reads found damaged and every tablet that
// has failed, a line each. They are for everybody, so they name no rows, nor what a
// panic says.
func (a *Admin) Warnings() []string {
	o := a.open.Load()
	if o == nil {
		return nil
	}
	var out []string
	for _, d := range o.op.Damage() {
		if d.Failed {
			out = append(out, fmt.Sprintf("tablet %v of %s failed at %s: its work panicked, see the log; all other rows are served. Report it; a start tries again",
				d.Tablet, d.Table, d.First.UTC().Format(time.RFC3339)))
			continue
		}
		object := d.Object
		if object == "" {
			object = "an SSTable"
		}
		out = append(out, fmt.Sprintf("corruption in %s of tablet %v of %s: %d reads since %s got DATA_LOSS; all other rows are served",
			object, d.Tablet, d.Table, d.Reads, d.First.UTC().Format(time.RFC3339)))
	}
	return out
}

// EscapeKey writes a row key as text: printable ASCII as it is except for the
// backslash, which is doubled, every other byte as \xNN.
func EscapeKey(key []byte) string { return row.Escape(key) }

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
