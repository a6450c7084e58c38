package s3_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/objectstore/s3"
	"github.com/trestledb/trestle/engine/objectstore/s3/s3test"
	"github.com/trestledb/trestle/engine/objectstore/storetest"
)

func open(t testing.TB, o s3.Options) *s3.Store {
	t.Helper()
	s, err := s3.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	for _, prefix := range []string{"", "some/prefix"} {
		t.Run("prefix="+prefix, func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) objectstore.Store {
				o := s3test.Fake(t, nil)
				o.Prefix = prefix
				return open(t, o)
			})
		})
	}
}

// TestMinIO runs the suite against the server that the environment names.
func TestMinIO(t *testing.T) {
	o := s3test.MinIO(t)
	n := 0
	storetest.Run(t, func(t *testing.T) objectstore.Store {
		o := o
		n++
		o.Prefix = fmt.Sprintf("test%d", n)
		return open(t, o)
	})
}

func TestNoBucket(t *testing.T) {
	o := s3test.Fake(t, nil)
	o.Bucket = "other"
	if _, err := s3.Open(t.Context(), o); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("open without the bucket: %v", err)
	}
}

// TestI15_IgnoredCondition: a server that ignores If-None-Match is refused.
func TestI15_IgnoredCondition(t *testing.T) {
	s := open(t, s3test.Fake(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("If-None-Match")
			h.ServeHTTP(w, r)
		})
	}))
	if err := s.Probe(t.Context()); fault.KindOf(err) != fault.FailedPrecondition {
		t.Errorf("the probe says %v", err)
	}
}

// A scripted server answers the first PUTs as a script has it.
func scripted(script ...string) func(http.Handler) http.Handler {
	var n atomic.Int64
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPut {
				h.ServeHTTP(w, r)
				return
			}
			i := n.Add(1) - 1
			if i >= int64(len(script)) {
				h.ServeHTTP(w, r)
				return
			}
			body, _ := io.ReadAll(r.Body)
			if strings.HasPrefix(script[i], "stored") {
				r.Body = io.NopCloser(bytes.NewReader(body))
				h.ServeHTTP(httptest.NewRecorder(), r)
			}
			switch _, what, _ := strings.Cut(script[i], " "); what {
			case "conflict":
				w.WriteHeader(http.StatusConflict)
				fmt.Fprint(w, `<Error><Code>ConditionalRequestConflict</Code></Error>`)
			case "busy":
				w.WriteHeader(http.StatusServiceUnavailable)
				fmt.Fprint(w, `<Error><Code>SlowDown</Code></Error>`)
			case "full":
				w.WriteHeader(http.StatusInsufficientStorage)
				fmt.Fprint(w, `<Error><Code>XMinioStorageFull</Code></Error>`)
			case "cut":
				panic(http.ErrAbortHandler)
			}
		})
	}
}

// TestUnknownOutcome: whatever became of the first attempts, a put says the
// truth.
func TestUnknownOutcome(t *testing.T) {
	for _, tc := range []struct {
		script []string
		want   fault.Kind
	}{
		{[]string{"not conflict"}, 0},
		{[]string{"not busy"}, 0},
		{[]string{"not cut"}, 0},
		{[]string{"stored busy"}, 0},
		{[]string{"stored cut"}, 0},
		{[]string{"not cut", "stored cut", "not conflict"}, 0},
		{[]string{"not full"}, fault.Exhausted},
		{[]string{"not busy", "not busy", "not busy", "not busy", "not busy"}, fault.Unavailable},
	} {
		t.Run(strings.Join(tc.script, ","), func(t *testing.T) {
			s := open(t, s3test.Fake(t, scripted(tc.script...)))
			data := bytes.Repeat([]byte("x"), 1000)
			err := s.PutIfAbsent(t.Context(), "a", data)
			if fault.KindOf(err) != tc.want {
				t.Fatalf("put: %v, want kind %v", err, tc.want)
			}
			if err == nil {
				if got, err := s.Get(t.Context(), "a"); err != nil || !bytes.Equal(got, data) {
					t.Errorf("get: %d bytes, %v", len(got), err)
				}
			}
		})
	}
}

// TestForeignAfterUnknown: an object that somebody else stored between two
// attempts is not ours.
func TestForeignAfterUnknown(t *testing.T) {
	var s *s3.Store
	var once sync.Once
	s = open(t, s3test.Fake(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			cut := false
			if r.Method == http.MethodPut {
				once.Do(func() { cut = true })
			}
			if cut {
				if err := s.PutIfAbsent(context.Background(), "a", []byte("theirs")); err != nil {
					t.Error(err)
				}
				panic(http.ErrAbortHandler)
			}
			h.ServeHTTP(w, r)
		})
	}))
	if err := s.PutIfAbsent(t.Context(), "a", []byte("theirs")); !errors.Is(err, fault.AlreadyExists) {
		t.Errorf("put: %v", err)
	}
}

// TestOneByOne: a service that cannot delete many objects by one request is
// asked to delete each.
func TestOneByOne(t *testing.T) {
	asked := 0
	s := open(t, s3test.Fake(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				asked++
				w.WriteHeader(http.StatusNotImplemented)
				fmt.Fprint(w, `<Error><Code>NotImplemented</Code></Error>`)
				return
			}
			h.ServeHTTP(w, r)
		})
	}))
	names := []string{"a", "b", "c"}
	for _, name := range names {
		if err := s.PutIfAbsent(t.Context(), name, []byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := objectstore.DeleteAll(t.Context(), s, names); err != nil {
		t.Fatal(err)
	}
	if left, err := s.List(t.Context(), "", "", 0); len(left) > 0 || err != nil || asked == 0 {
		t.Errorf("%d objects left, %v, %d requests for many", len(left), err, asked)
	}
}
