package ops

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
	"github.com/trestledb/trestle/gateway/auth"
)

// fakeOperator blocks in Compact until it is cancelled or released.
type fakeOperator struct {
	Exporter
	release chan struct{}
	rows    chan row.Range
	groups  []tablet.GroupInfo
	moved   string
}

func (f *fakeOperator) EachTablet(ctx context.Context, table string, each func(*tablet.Info) error) error {
	if _, err := f.TableNamed(ctx, table); err != nil {
		return err
	}
	return each(&tablet.Info{Table: "t", Tablet: 0xABC, Rows: row.Range{Start: []byte("a\x00\xff"), End: []byte(`b\`)}, Redo: "1:2"})
}
func (f *fakeOperator) TableNamed(_ context.Context, table string) (string, error) {
	if table == "none" {
		return "", fault.New(fault.NotFound, "Table not found: none")
	}
	return "t", nil
}
func (f *fakeOperator) TableNames() []string { return []string{"t"} }
func (f *fakeOperator) SplitAt(context.Context, string, []byte) error {
	return fault.New(fault.Exhausted, "disk full")
}
func (f *fakeOperator) SplitKey(_ context.Context, _ string, key []byte) ([]byte, bool, error) {
	return append(key, 'm'), string(key) != "small", nil
}
func (f *fakeOperator) MoveTablet(_ context.Context, table string, key []byte, server string, stay bool) error {
	if server != "server-1" {
		return fault.New(fault.NotFound, "no server")
	}
	f.moved = fmt.Sprintf("%s %s %v", table, key, stay)
	return nil
}
func (f *fakeOperator) TabletOf(_ context.Context, id metadata.TabletID) (string, row.Range, error) {
	switch id {
	case 0xABC:
		return "t", row.Range{Start: []byte("a"), End: []byte("b")}, nil
	case 0xDEF:
		return "t", row.Range{Start: []byte("small")}, nil
	}
	return "", row.Range{}, fault.New(fault.NotFound, "there is no tablet %v", id)
}
func (f *fakeOperator) TabletAt(context.Context, string, []byte) (metadata.TabletID, error) {
	return 0xABC, nil
}
func (f *fakeOperator) Servers(context.Context) ([]TabletServer, error) {
	return []TabletServer{{Name: "server-1", Tablets: 3}}, nil
}
func (f *fakeOperator) Drain(_ context.Context, name string) error {
	if name != "server-1" {
		return fault.New(fault.NotFound, "there is no tablet server %q", name)
	}
	return nil
}
func (f *fakeOperator) Undrain(ctx context.Context, name string) error { return f.Drain(ctx, name) }
func (f *fakeOperator) AwaitDrained(ctx context.Context, _ string, left func(int)) error {
	left(2)
	select {
	case <-f.release:
		left(0)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
func (f *fakeOperator) MergeAt(context.Context, string, []byte) error { return errors.New("no kind") }
func (f *fakeOperator) FlushTablets(context.Context, string, row.Range) error {
	return fault.New(fault.Unavailable, "not now")
}
func (f *fakeOperator) CompactTablets(ctx context.Context, _ string, rows row.Range, report func(done, total int64)) error {
	f.rows <- rows
	report(3, 10)
	select {
	case <-f.release:
		report(10, 10)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
func (f *fakeOperator) VerifyTablets(_ context.Context, _ string, _ row.Range, damaged func(tablet.ObjectDamage), report func(done, total int64)) error {
	damaged(tablet.ObjectDamage{Table: "t", Tablet: 1, Object: "x.sst", Err: errors.New("bad")})
	report(1, 1)
	return nil
}
func (f *fakeOperator) DropDamaged(_ context.Context, table, object string) (tablet.Loss, error) {
	if object != "x.sst" {
		return tablet.Loss{}, fault.New(fault.NotFound, "no such SSTable")
	}
	return tablet.Loss{First: []byte("a\x00"), Last: []byte("z"), Entries: 3, Bytes: 4}, nil
}
func (f *fakeOperator) Damage() []tablet.TableDamage {
	return []tablet.TableDamage{{Table: "t", Rows: row.Range{End: []byte("k")}, Damage: tablet.Damage{Tablet: 7, Object: "x.sst", Reads: 5, First: time.Unix(0, 0)}},
		{Table: "t", Rows: row.Range{Start: []byte("k")}, Damage: tablet.Damage{Tablet: 8, First: time.Unix(0, 0), Failed: true, Err: errors.New("tablet 8 failed: its flush panicked: x.")}}}
}

func (f *fakeOperator) Groups(_ context.Context, table string) (string, []tablet.GroupInfo, error) {
	if table == "none" {
		return "", nil, fault.New(fault.NotFound, "Table not found: none")
	}
	return "full/" + table, append([]tablet.GroupInfo{{Group: schema.Group{Name: "default"}, Families: []string{"f"}}}, f.groups...), nil
}
func (f *fakeOperator) CreateGroup(_ context.Context, _ string, g schema.Group) (*schema.Table, error) {
	f.groups = append(f.groups, tablet.GroupInfo{Group: g})
	return nil, nil
}
func (f *fakeOperator) SetGroup(_ context.Context, _, _ string, change func(*schema.Group) error) (*schema.Table, error) {
	return nil, change(&f.groups[0].Group)
}
func (f *fakeOperator) DeleteGroup(context.Context, string, string) (*schema.Table, error) {
	return nil, fault.New(fault.FailedPrecondition, "it is in use")
}
func (f *fakeOperator) AssignFamilies(_ context.Context, _, _ string, families []string) (*schema.Table, error) {
	f.groups[0].Families = append(f.groups[0].Families, families...)
	return nil, nil
}

// TestLocalityGroups: a change leaves alone what it does not name.
func TestLocalityGroups(t *testing.T) {
	a := NewAdmin()
	s := service{t, Gate{}.Handler(a.Routes())}
	a.Start(&fakeOperator{}, nobody(t))
	for _, c := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"GET", "/admin/table?table=t", "", 200, `{"groups":[{"bytes":0,"families":["f"],"files":0,"in_memory_bytes":0,"name":"default","runs":0}],"table":"full/t"}`},
		{"GET", "/admin/table?table=none", "", 404, "Table not found: none"},
		{"GET", "/admin/table", "", 400, "name a table"},
		{"POST", "/admin/table/create-group", `{"table":"t","group":"g","compression":"zstd","block_bytes":4096,"families":["a","b"]}`, 200,
			`{"block_bytes":4096,"bytes":0,"compression":"zstd","families":["a","b"],"files":0,"in_memory_bytes":0,"name":"g","runs":0}`},
		{"POST", "/admin/table/set-group", `{"table":"t","group":"g","in_memory":true,"bloom_bits":-1}`, 200,
			`{"block_bytes":4096,"bloom_bits":-1,"bytes":0,"compression":"zstd","families":["a","b"],"files":0,"in_memory":true,"in_memory_bytes":0,"name":"g","runs":0}`},
		{"POST", "/admin/table/set-group", `{"table":"t","group":"g","in_memory":false,"compression":""}`, 200,
			`{"block_bytes":4096,"bloom_bits":-1,"bytes":0,"families":["a","b"],"files":0,"in_memory_bytes":0,"name":"g","runs":0}`},
		{"POST", "/admin/table/assign", `{"table":"t","group":"g"}`, 400, "families"},
		{"POST", "/admin/table/assign", `{"table":"t","group":"g","families":["c"]}`, 200, `["a","b","c"]`},
		{"POST", "/admin/table/delete-group", `{"table":"t","group":"g"}`, 409, "in use"},
		{"POST", "/admin/table/set-group", `{"table":"t"}`, 400, "group"},
		{"POST", "/admin/table/set-group", `{"tabel":"t"}`, 400, "decode"},
	} {
		code, got := s.ask(c.method, c.path, c.body)
		b, _ := json.Marshal(got)
		if code != c.code || !strings.Contains(string(b), c.want) {
			t.Errorf("%s %s %s: %d %s, want %d %s", c.method, c.path, c.body, code, b, c.code, c.want)
		}
	}
}

type service struct {
	t *testing.T
	h http.Handler
}

// ask makes a request of this machine.
func (s service) ask(method, path, body string) (int, map[string]any) {
	s.t.Helper()
	req := httptest.NewRequest(method, "http://127.0.0.1:8087"+path, strings.NewReader(body))
	req.RemoteAddr = "127.0.0.1:40000"
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	w := httptest.NewRecorder()
	s.h.ServeHTTP(w, req)
	var got map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		s.t.Errorf("%s %s: %v: %s", method, path, err, w.Body)
	}
	return w.Code, got
}

func TestAdmin(t *testing.T) {
	a := NewAdmin()
	s := service{t, Gate{}.Handler(a.Routes())}
	if code, _ := s.ask("GET", "/admin/tablets", ""); code != http.StatusServiceUnavailable {
		t.Errorf("while the store is opened: %d", code)
	}
	if w := a.Warnings(); w != nil {
		t.Errorf("while the store is opened: %q", w)
	}
	f := &fakeOperator{release: make(chan struct{}), rows: make(chan row.Range, 10)}
	a.Start(f, nobody(t))
	code, got := s.ask("GET", "/admin/tablets?table=t", "")
	first := got["tablets"].([]any)[0].(map[string]any)
	if code != 200 || first["tablet"] != "abc" || first["start"] != `a\x00\xff` || first["end"] != `b\\` || first["redo"] != "1:2" || first["last_major"] != nil {
		t.Errorf("%d %v", code, got)
	}
	for _, c := range []struct {
		method, path, body string
		code               int
		what               string
	}{
		{"GET", "/admin/tablets?table=none", "", 404, "none"},
		{"POST", "/admin/tablets/split", `{"table":"t","key":"k"}`, 507, "disk full"},
		{"POST", "/admin/tablets/merge", `{"table":"t","key":"k"}`, 500, "no kind"},
		{"POST", "/admin/tablets/merge", `{"table":"t"}`, 400, "key"},
		{"POST", "/admin/tablets/merge", `{"table":"t","all":true}`, 400, "key"},
		{"POST", "/admin/tablets/merge", `{"key":"k"}`, 400, "table"},
		{"POST", "/admin/tablets/merge", `nonsense`, 400, "decode"},
		{"POST", "/admin/tablets/flush", `{"table":"t","all":true,"key":"k"}`, 400, "either"},
		{"POST", "/admin/tablets/flush", `{"table":"none","all":true}`, 404, "none"},
		{"GET", "/admin/jobs/77", "", 404, "77"},
		{"DELETE", "/admin/jobs/77", "", 404, "77"},
	} {
		if code, got := s.ask(c.method, c.path, c.body); code != c.code || !strings.Contains(got["error"].(string), c.what) {
			t.Errorf("%s %s %s: %d %v", c.method, c.path, c.body, code, got)
		}
	}

	// A job runs, tells how far it is, and ends.
	code, got = s.ask("POST", "/admin/tablets/compact", `{"table":"t","key":"k\\x00"}`)
	if code != http.StatusAccepted || got["state"] != "running" || got["id"] != "1" {
		t.Fatalf("%d %v", code, got)
	}
	if rows := <-f.rows; !rows.IsSingle() || string(rows.Start) != "k\x00" {
		t.Errorf("compacted %q", rows)
	}
	for got["bytes_done"] != 3.0 {
		_, got = s.ask("GET", "/admin/jobs/1?wait=0.01", "")
	}
	close(f.release)
	if _, got = s.ask("GET", "/admin/jobs/1?wait=30", ""); got["state"] != "done" || got["bytes_done"] != 10.0 || got["ended"] == nil {
		t.Errorf("%v", got)
	}
	if code, _ := s.ask("GET", "/admin/jobs/1?wait=1000", ""); code != 400 {
		t.Errorf("a long wait: %d", code)
	}
	// One that fails, and one that finds damage.
	s.ask("POST", "/admin/tablets/flush", `{"table":"t","all":true}`)
	if _, got = s.ask("GET", "/admin/jobs/2?wait=30", ""); got["state"] != "failed" || got["error"] != "not now" {
		t.Errorf("%v", got)
	}
	s.ask("POST", "/admin/tablets/verify", `{"table":"t","all":true}`)
	if _, got = s.ask("GET", "/admin/jobs/3?wait=30", ""); got["state"] != "done" || got["damaged"].([]any)[0].(map[string]any)["object"] != "x.sst" {
		t.Errorf("%v", got)
	}
	// No more than a few at a time; cancelled they end.
	f.release = make(chan struct{})
	for range maxRunning {
		s.ask("POST", "/admin/tablets/compact", `{"table":"t","all":true}`)
		<-f.rows
	}
	if code, got := s.ask("POST", "/admin/tablets/compact", `{"table":"t","all":true}`); code != http.StatusConflict {
		t.Errorf("one too many: %d %v", code, got)
	}
	// A drain only waits, so it is none of these; one that is refused is no job.
	if code, got := s.ask("POST", "/admin/servers/drain", `{"server":"server-1"}`); code != http.StatusAccepted {
		t.Errorf("a drain beside them: %d %v", code, got)
	}
	if code, got := s.ask("POST", "/admin/servers/drain", `{"server":"typo"}`); code != http.StatusNotFound {
		t.Errorf("a drain of no server: %d %v", code, got)
	}
	s.ask("DELETE", "/admin/jobs/4", "")
	if _, got = s.ask("GET", "/admin/jobs/4?wait=30", ""); got["state"] != "cancelled" {
		t.Errorf("%v", got)
	}
	a.Close()
	if _, got = s.ask("GET", "/admin/jobs", ""); len(got["jobs"].([]any)) != 8 || strings.Contains(string(must(json.Marshal(got))), "running") {
		t.Errorf("after Close: %v", got)
	}
	if code, _ := s.ask("POST", "/admin/tablets/compact", `{"table":"t","all":true}`); code != http.StatusServiceUnavailable {
		t.Errorf("after Close: %d", code)
	}
	if w := a.Warnings(); len(w) != 2 || !strings.Contains(w[1], "tablet 8 of t failed at 1970-01-01T00:00:00Z: its work panicked, see the log; all other rows are served") || !strings.Contains(w[0], "corruption in x.sst of tablet 7 of t: 5 reads since 1970-01-01T00:00:00Z got DATA_LOSS") {
		t.Errorf("%q", w)
	}
}

// TestTabletsByID: a tablet's id stands for its table and rows in every request.
func TestTabletsByID(t *testing.T) {
	a := NewAdmin()
	defer a.Close()
	s := service{t, Gate{}.Handler(a.Routes())}
	f := &fakeOperator{release: make(chan struct{}), rows: make(chan row.Range, 10)}
	a.Start(f, nobody(t))
	for _, c := range []struct {
		path, body string
		code       int
		want       string
	}{
		{"tablets/move", `{"tablet":"abc","server":"server-1","pin":true}`, 200, `{"key":"a","server":"server-1","table":"t"}`},
		{"tablets/move", `{"tablet":"abc","server":"server-2"}`, 404, "no server"},
		{"tablets/move", `{"tablet":"abc"}`, 400, "name a server"},
		{"tablets/move", `{"tablet":"1","server":"server-1"}`, 404, "there is no tablet 1"},
		{"tablets/move", `{"tablet":"xyz","server":"server-1"}`, 400, "is not the id of a tablet"},
		{"tablets/move", `{"tablet":"abc","table":"t","server":"server-1"}`, 400, "either"},
		{"tablets/move", `{"table":"t","all":true,"server":"server-1"}`, 400, "key of a row"},
		{"tablets/split", `{"tablet":"abc"}`, 507, "disk full"}, // so it was asked to
		{"tablets/split", `{"tablet":"def"}`, 409, "too small"},
		{"tablets/split", `{"tablet":"abc","key":"c"}`, 400, "serves the rows [a, b), and not c"},
		{"tablets/merge", `{"tablet":"abc","key":"c"}`, 400, "either"},
		{"tablets/merge", `{"tablet":"abc"}`, 500, "no kind"},
		{"tablets/flush", `{"tablet":"abc","key":"k"}`, 400, "either"},
		{"tablets/drop-damaged", `{"tablet":"abc","object":"x.sst","confirm":"x.sst"}`, 200, `"table":"t"`},
		{"servers/drain", `{"server":"typo"}`, 404, "no tablet server"},
		{"servers/drain", `{}`, 400, "name a server"},
		{"servers/undrain", `{"server":"server-1"}`, 200, "server-1"},
	} {
		code, got := s.ask("POST", "/admin/"+c.path, c.body)
		if b := string(must(json.Marshal(got))); code != c.code || !strings.Contains(b, c.want) {
			t.Errorf("%s %s: %d %s, want %d %s", c.path, c.body, code, b, c.code, c.want)
		}
	}
	if f.moved != "t a true" {
		t.Errorf("moved %q", f.moved)
	}
	_, got := s.ask("POST", "/admin/tablets/compact", `{"tablet":"abc"}`)
	if rows := <-f.rows; !rows.IsSingle() || string(rows.Start) != "a" || got["table"] != "t" || got["tablet"] != "abc" {
		t.Errorf("compacts %q: %v", rows, got)
	}
	if _, got := s.ask("GET", "/admin/servers", ""); !strings.Contains(string(must(json.Marshal(got))), `"name":"server-1"`) {
		t.Errorf("servers: %v", got)
	}
	// A drain is a job that tells how many tablets are left.
	code, got := s.ask("POST", "/admin/servers/drain", `{"server":"server-1"}`)
	if code != http.StatusAccepted || got["what"] != "drain" || got["server"] != "server-1" {
		t.Fatalf("%d %v", code, got)
	}
	job := "/admin/jobs/" + got["id"].(string)
	// One that is asked for again is the same.
	if code, again := s.ask("POST", "/admin/servers/drain", `{"server":"server-1"}`); code != http.StatusAccepted || again["id"] != got["id"] {
		t.Errorf("drained again: %d %v", code, again)
	}
	for got["tablets_left"] != 2.0 {
		_, got = s.ask("GET", job+"?wait=0.01", "")
	}
	close(f.release)
	if _, got = s.ask("GET", job+"?wait=30", ""); got["state"] != "done" || got["tablets_left"] != nil {
		t.Errorf("%v", got)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestJobsAreForgotten: only the last are kept.
func TestJobsAreForgotten(t *testing.T) {
	a := NewAdmin()
	defer a.Close()
	s := service{t, Gate{}.Handler(a.Routes())}
	a.Start(&fakeOperator{}, nobody(t))
	for range maxJobs + 3 {
		_, got := s.ask("POST", "/admin/tablets/verify", `{"table":"t","all":true}`)
		s.ask("GET", "/admin/jobs/"+got["id"].(string)+"?wait=30", "")
	}
	if _, got := s.ask("GET", "/admin/jobs", ""); len(got["jobs"].([]any)) != maxJobs {
		t.Errorf("%d are kept", len(got["jobs"].([]any)))
	}
	if code, _ := s.ask("GET", "/admin/jobs/3", ""); code != 404 {
		t.Errorf("the third: %d", code)
	}
}

// nobody is the Auth of a server without login.
func nobody(t *testing.T) *auth.Auth {
	t.Helper()
	a, err := auth.Open(t.Context(), nil, auth.Options{Off: true})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestGate asks who gets to a route: without login only this machine, as the peer
// of the connection, and never the page of a browser.
func TestGate(t *testing.T) {
	const here, elsewhere = "127.0.0.1:40000", "10.0.0.9:40000"
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	routes := []Route{{Pattern: "GET /open", For: Everybody, Handler: served}, {Pattern: "/x", Handler: served}}
	for _, tc := range []struct {
		g          Gate
		peer, host string
		header     [2]string
		want       int
	}{
		{Gate{}, here, "localhost:8087", [2]string{}, 204}, {Gate{}, "[::1]:40000", "[::1]:8087", [2]string{}, 204},
		{Gate{}, "127.9.9.9:40000", "127.0.0.1", [2]string{}, 204}, {Gate{}, here, "[::1]", [2]string{}, 204},
		{Gate{}, elsewhere, "localhost:8087", [2]string{}, 403}, {Gate{}, "[fe80::1%lo]:1", "localhost", [2]string{}, 403}, {Gate{}, "", "localhost", [2]string{}, 403},
		{Gate{}, here, "example.com", [2]string{}, 403}, {Gate{}, here, "localhost.example.com:8087", [2]string{}, 403}, {Gate{}, here, "10.0.0.1", [2]string{}, 403},
		{Gate{}, elsewhere, "localhost", [2]string{"X-Forwarded-For", "127.0.0.1"}, 403}, {Gate{}, here, "localhost", [2]string{"X-Forwarded-For", "127.0.0.1"}, 403},
		{Gate{}, here, "localhost", [2]string{"Forwarded", "for=10.0.0.9"}, 403}, {Gate{}, here, "localhost", [2]string{"X-Real-IP", "10.0.0.9"}, 403},
		{Gate{}, here, "localhost", [2]string{"Origin", "http://evil.example"}, 403}, {Gate{}, here, "localhost", [2]string{"Origin", "null"}, 403},
		{Gate{Insecure: true}, elsewhere, "example.com", [2]string{}, 204}, {Gate{Insecure: true}, elsewhere, "example.com", [2]string{"Origin", "http://example.com"}, 403},
		// Who calls is for the handler to find out.
		{Gate{Login: true}, elsewhere, "db.example.com", [2]string{"X-Forwarded-For", "1.2.3.4"}, 204}, {Gate{Login: true}, here, "db.example.com", [2]string{"Origin", "http://evil.example"}, 403},
	} {
		for path, want := range map[string]int{"/x": tc.want, "/open": 204, "/else": 404} {
			req := httptest.NewRequest(http.MethodGet, path, nil)
			req.Host, req.RemoteAddr = tc.host, tc.peer
			if tc.header[0] != "" {
				req.Header.Set(tc.header[0], tc.header[1])
			}
			w := httptest.NewRecorder()
			tc.g.Handler(routes).ServeHTTP(w, req)
			if w.Code != want {
				t.Errorf("%+v: %s answers %d", tc, path, w.Code)
			}
		}
	}
	// A unix socket is this machine's.
	req := httptest.NewRequest(http.MethodGet, "/x", nil)
	req.RemoteAddr, req.Host = "@", "unix"
	req = req.WithContext(context.WithValue(req.Context(), http.LocalAddrContextKey, net.Addr(&net.UnixAddr{Name: "/s", Net: "unix"})))
	w := httptest.NewRecorder()
	Gate{}.Handler(routes).ServeHTTP(w, req)
	if w.Code != 204 {
		t.Errorf("a unix socket: %d", w.Code)
	}
}

func FuzzKey(f *testing.F) {
	f.Add([]byte("a\\b\x00\xff é"))
	f.Fuzz(func(t *testing.T, key []byte) {
		if got, err := UnescapeKey(EscapeKey(key)); err != nil || !bytes.Equal(got, key) {
			t.Errorf("%q becomes %q, %v", key, got, err)
		}
		if got, err := UnescapeKey(string(key)); err == nil && len(got) > len(key) {
			t.Errorf("%q grows to %q", key, got)
		}
	})
}

func TestUnescapeKey(t *testing.T) {
	for in, want := range map[string]string{"": "", "abc": "abc", `\x00\\x`: "\x00\\x", `é`: "é", `\xC3\xa9`: "é"} {
		if got, err := UnescapeKey(in); err != nil || string(got) != want {
			t.Errorf("%s: %q %v", in, got, err)
		}
	}
	for _, in := range []string{`\`, `a\`, `\n`, `\x`, `\x1`, `\xg0`, `\x+1`} {
		if got, err := UnescapeKey(in); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: %q %v", in, got, err)
		}
	}
}
