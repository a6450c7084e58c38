package hdfs_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"

	"fmt"
	"github.com/trestledb/trestle/engine/fault"
	"testing"

	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/objectstore/hdfs"
	"github.com/trestledb/trestle/engine/objectstore/hdfs/hdfstest"
	"github.com/trestledb/trestle/engine/objectstore/storetest"
)

func open(t testing.TB, o hdfs.Options) *hdfs.Store {
	t.Helper()
	s, err := hdfs.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) objectstore.Store { return open(t, hdfstest.Fake(t, nil)) })
}

// A faulty transport does to the first requests of an operation what its script
// says.
type faulty struct {
	http.RoundTripper
	op     string // as in the query; that of a DataNode has a # before it
	before func() // called before the first, if not nil

	mu     sync.Mutex
	script []string
}

func (f *faulty) RoundTrip(r *http.Request) (*http.Response, error) {
	op := r.URL.Query().Get("op")
	if r.URL.Query().Has("datanode") || r.URL.Query().Has("namenoderpcaddress") {
		op = "#" + op
	}
	f.mu.Lock()
	fault := ""
	if op == f.op && len(f.script) > 0 {
		fault, f.script = f.script[0], f.script[1:]
	}
	f.mu.Unlock()
	if fault == "" {
		return f.RoundTripper.RoundTrip(r)
	}
	if f.before != nil {
		f.before()
		f.before = nil
	}
	switch fault {
	case "cut":
		return nil, errors.New("cut")
	case "lost": // carried out, and nobody hears of it
		resp, err := f.RoundTripper.RoundTrip(r)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		return nil, errors.New("lost")
	}
	body := fmt.Sprintf(`{"RemoteException":{"exception":%q,"javaClassName":"x","message":"a\nb"}}`, fault)
	return &http.Response{StatusCode: http.StatusForbidden, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// outcomes are what becomes of a put when requests fail.
var outcomes = []struct {
	op     string
	script []string
	want   fault.Kind
}{
	{"RENAME", []string{"lost"}, 0},
	{"RENAME", []string{"cut"}, 0},
	{"RENAME", []string{"cut", "lost", "cut", "cut"}, 0},
	{"RENAME", []string{"SafeModeException"}, 0},
	{"RENAME", []string{"lost", "StandbyException"}, 0},
	{"RENAME", []string{"cut", "cut", "cut", "cut", "cut"}, fault.Unavailable},
	{"RENAME", []string{"DSQuotaExceededException"}, fault.Exhausted},
	{"RENAME", []string{"AccessControlException"}, fault.PermissionDenied},
	{"CREATE", []string{"cut", "lost", "RetriableException"}, 0},
	{"CREATE", []string{"NSQuotaExceededException"}, fault.Exhausted},
	{"#CREATE", []string{"cut"}, 0},
	{"#CREATE", []string{"lost"}, 0},
	{"#CREATE", []string{"FileAlreadyExistsException"}, 0},
	{"#CREATE", []string{"IOException", "IOException", "IOException", "IOException", "IOException"}, fault.Unavailable},
}

func testOutcomes(t *testing.T, o hdfs.Options) {
	for i, tc := range outcomes {
		t.Run(tc.op+" "+strings.Join(tc.script, ","), func(t *testing.T) {
			for _, way := range []string{"put", "create"} {
				o, script := o, slices.Clone(tc.script)
				want := tc.want
				if way == "create" && tc.op == "#CREATE" {
					want = fault.Unavailable // what came piece by piece cannot be sent again
				}
				o.Transport = &faulty{RoundTripper: o.Transport, op: tc.op, script: script}
				s := open(t, o)
				data := bytes.Repeat([]byte("x"), 1000)
				name := fmt.Sprintf("%s/%d", way, i)
				var err error
				if way == "put" {
					err = s.PutIfAbsent(t.Context(), name, data)
				} else {
					var w objstorage.Writable
					if w, err = s.Create(t.Context(), name); err == nil {
						_ = w.Write(data)
						err = w.Finish()
					}
				}
				if fault.KindOf(err) != want {
					t.Errorf("%s: %v, want kind %v", way, err, want)
				}
				if err == nil {
					if got, err := s.Get(t.Context(), name); err != nil || !bytes.Equal(got, data) {
						t.Errorf("get: %d bytes, %v", len(got), err)
					}
				} else if _, err := s.Get(t.Context(), name); !errors.Is(err, fault.NotFound) {
					t.Errorf("get: %v", err)
				}
			}
		})
	}
}

// TestUnknownOutcome: whatever became of the first attempts, a put says the
// truth.
func TestUnknownOutcome(t *testing.T) { testOutcomes(t, hdfstest.Fake(t, nil)) }

// TestForeign: an object that somebody else stored between two attempts is not
// ours, also if it holds the same.
func TestForeign(t *testing.T) {
	for _, first := range []string{"cut", "lost"} {
		o := hdfstest.Fake(t, nil)
		other := open(t, o)
		o.Transport = &faulty{RoundTripper: o.Transport, op: "RENAME", script: []string{first}, before: func() {
			if err := other.PutIfAbsent(context.Background(), "a/b", []byte("same")); err != nil {
				t.Error(err)
			}
		}}
		if err := open(t, o).PutIfAbsent(t.Context(), "a/b", []byte("same")); !errors.Is(err, fault.AlreadyExists) {
			t.Errorf("put after a rename that was %s: %v", first, err)
		}
	}
}

// TestSameOwner: a process whose temporary files another of its name removes
// does not take that for success, and goes on.
func TestSameOwner(t *testing.T) {
	for _, first := range []string{"cut", "lost"} {
		o := hdfstest.Fake(t, nil)
		o.Owner = "me"
		again := o
		o.Transport = &faulty{RoundTripper: o.Transport, op: "RENAME", script: []string{first}, before: func() { open(t, again) }}
		s := open(t, o)
		if err := s.PutIfAbsent(t.Context(), "a", []byte("x")); !errors.Is(err, fault.Unavailable) {
			t.Errorf("put after a rename that was %s: %v", first, err)
		}
		if err := s.PutIfAbsent(t.Context(), "b", []byte("x")); err != nil {
			t.Errorf("the next put: %v", err)
		}
	}
}

// TestOwner: opening a store removes what its owner left, and nobody else's.
func TestOwner(t *testing.T) {
	o := hdfstest.Fake(t, nil)
	for _, owner := range []string{"a", "b"} {
		o.Owner = owner
		if err := open(t, o).PutIfAbsent(t.Context(), owner, nil); err != nil {
			t.Fatal(err)
		}
	}
	o.Owner = "a"
	s := open(t, o)
	w, err := s.Create(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	o.Owner = "b"
	open(t, o)
	if err := w.Finish(); err != nil {
		t.Errorf("finish: %v", err)
	}
	o.Owner = "a.b"
	if _, err := hdfs.Open(t.Context(), o); fault.KindOf(err) != fault.Invalid {
		t.Errorf("owner a.b: %v", err)
	}
}

// An aged transport makes everything that is listed a time older.
type aged struct {
	http.RoundTripper
	by time.Duration
}

var modificationTime = regexp.MustCompile(`"modificationTime":(\d+)`)

func (a aged) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := a.RoundTripper.RoundTrip(r)
	if err != nil || !strings.HasPrefix(r.URL.Query().Get("op"), "LISTSTATUS") {
		return resp, err
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	body = modificationTime.ReplaceAllFunc(body, func(m []byte) []byte {
		at, _ := strconv.ParseInt(string(m[len(`"modificationTime":`):]), 10, 64)
		return fmt.Appendf(nil, `"modificationTime":%d`, at-a.by.Milliseconds())
	})
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return resp, err
}

// TestAbandoned: what a command leaves unfinished that was killed is removed a day
// later, by any process; nothing else of others is.
func TestAbandoned(t *testing.T) {
	for _, tc := range []struct {
		owner string
		by    time.Duration
		ok    bool
	}{{objectstore.OnceOwner("host"), 23 * time.Hour, true}, {objectstore.OnceOwner("host"), 25 * time.Hour, false}, {"ts1", 25 * time.Hour, true}} {
		o := hdfstest.Fake(t, nil)
		o.Owner = tc.owner
		w, err := open(t, o).Create(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write([]byte("unfinished")); err != nil {
			t.Fatal(err)
		}
		o.Owner, o.Transport = "ts2", aged{o.Transport, tc.by}
		open(t, o)
		if err := w.Finish(); tc.ok != (err == nil) {
			t.Errorf("%s, %v later: finish: %v", tc.owner, tc.by, err)
		}
	}
}

// TestI15_Unfit: a server that lacks what the store rests on is refused.
func TestI15_Unfit(t *testing.T) {
	for _, tc := range []struct {
		what   string
		change func(fake http.Handler, w http.ResponseWriter, r *http.Request)
	}{
		{"a rename replaces", func(fake http.Handler, w http.ResponseWriter, r *http.Request) {
			if q := r.URL.Query(); q.Get("op") == "RENAME" {
				del := httptest.NewRequest(http.MethodDelete, "/webhdfs/v1"+q.Get("destination")+"?op=DELETE&user.name=x", nil)
				fake.ServeHTTP(httptest.NewRecorder(), del)
			}
			fake.ServeHTTP(w, r)
		}},
		{"the flag is not known", func(fake http.Handler, w http.ResponseWriter, r *http.Request) {
			q := r.URL.Query()
			q.Del("createflag")
			r.URL.RawQuery = q.Encode()
			fake.ServeHTTP(w, r)
		}},
		{"options of a rename are not known", func(fake http.Handler, w http.ResponseWriter, r *http.Request) {
			if q := r.URL.Query(); q.Get("op") == "RENAME" {
				fmt.Fprint(w, `{"boolean":true}`)
				return
			}
			fake.ServeHTTP(w, r)
		}},
	} {
		s := open(t, hdfstest.Fake(t, func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { tc.change(h, w, r) })
		}))
		if err := s.Probe(t.Context()); fault.KindOf(err) != fault.FailedPrecondition {
			t.Errorf("%s: the probe says %v", tc.what, err)
		}
	}
}

// TestNotHDFS: an address that is no NameNode's is told so.
func TestNotHDFS(t *testing.T) {
	o := hdfstest.Fake(t, func(http.Handler) http.Handler { return http.NotFoundHandler() })
	if _, err := hdfs.Open(t.Context(), o); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("open: %v", err)
	}
}

// TestFailover finds the NameNode that is active.
func TestFailover(t *testing.T) {
	o := hdfstest.Fake(t, nil)
	standby := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"RemoteException":{"exception":"StandbyException","message":"Operation category WRITE is not supported in state standby"}}`)
	}))
	defer standby.Close()
	dead := httptest.NewServer(nil)
	dead.Close()
	o.NameNodes = []string{strings.TrimPrefix(dead.URL, "http://"), strings.TrimPrefix(standby.URL, "http://"), o.NameNodes[0]}
	s := open(t, o)
	if err := s.PutIfAbsent(t.Context(), "a", []byte("x")); err != nil {
		t.Error(err)
	}
}

// TestDeadDataNode: a DataNode that does not answer is not used for a while.
func TestDeadDataNode(t *testing.T) {
	dead := httptest.NewServer(nil)
	dead.Close()
	asked := 0
	s := open(t, hdfstest.Fake(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			q := r.URL.Query()
			if op := q.Get("op"); (op == "CREATE" || op == "OPEN") && !q.Has("datanode") && q.Get("excludedatanodes") != "127.0.0.1" {
				asked++
				w.Header().Set("Location", dead.URL+"/?createflag=SYNC_BLOCK")
				w.WriteHeader(http.StatusTemporaryRedirect)
				return
			}
			h.ServeHTTP(w, r)
		})
	}))
	for i := range 10 {
		if err := s.PutIfAbsent(t.Context(), fmt.Sprint(i), []byte("x")); err != nil {
			t.Error(err)
		}
		if b, err := s.Get(t.Context(), fmt.Sprint(i)); err != nil || string(b) != "x" {
			t.Errorf("get: %q, %v", b, err)
		}
	}
	if asked != 1 {
		t.Errorf("the dead DataNode was asked %d times", asked)
	}
}
