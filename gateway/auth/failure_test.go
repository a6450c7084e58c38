package auth_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"cloud.google.com/go/iam/apiv1/iampb"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/leaktest"
	"github.com/trestledb/trestle/gateway/auth"
	"github.com/trestledb/trestle/gateway/backend"
)

// flaky are records that can fail.
type flaky struct {
	backend.Records
	broken atomic.Bool
}

func (f *flaky) ListRecords(ctx context.Context, prefix string, emit func(string, []byte, uint64) error) error {
	if f.broken.Load() {
		return fault.New(fault.Unavailable, "the records are away")
	}
	return f.Records.ListRecords(ctx, prefix, emit)
}

// A clock is moved by hand.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// TestRecordsAway keeps what is known for a minute when it cannot be read
// again, and then lets nobody in: nobody knows what was revoked.
func TestRecordsAway(t *testing.T) {
	r, c := &flaky{Records: model.New(model.Options{})}, &clock{}
	accounts := auth.Accounts{Records: r}
	acc, err := accounts.Create(t.Context(), "p", "some-acc", "", "", false)
	if err != nil {
		t.Fatal(err)
	}
	file, _, err := accounts.Mint(t.Context(), acc.Email)
	if err != nil {
		t.Fatal(err)
	}
	a, err := auth.Open(t.Context(), r, auth.Options{Now: c.now, Refresh: 5 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	tok := parseAccount(t, file).token(nil)
	try := func() string { _, reason := a.Verify(tok); return reason }
	if got := try(); got != "" {
		t.Fatal(got)
	}
	r.broken.Store(true)
	time.Sleep(50 * time.Millisecond)
	c.ahead.Store(int64(55 * time.Second))
	if got := try(); got != "" {
		t.Error(got)
	}
	c.ahead.Store(int64(70 * time.Second))
	if got := try(); got != "stale" {
		t.Errorf("a remembered token: %q", got)
	}
	a.ForgetTokens()
	if got := try(); got != "stale" {
		t.Errorf("a new token: %q", got)
	}
	r.broken.Store(false)
	deadline := time.Now().Add(time.Minute)
	for try() != "" {
		if time.Now().After(deadline) {
			t.Fatal("the accounts are not read again")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestPoliciesAway does the same with policies. While nothing says what they are, requests
// go on at their pace with what is known, and each policy is asked for once in a second.
func TestPoliciesAway(t *testing.T) {
	b, c := model.New(model.Options{}), &clock{}
	a, err := auth.Open(t.Context(), b, auth.Options{Now: c.now, Refresh: 5 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	acc, err := a.Accounts().Create(t.Context(), "p", "some-acc", "", "", false)
	if err != nil {
		t.Fatal(err)
	}
	file, _, err := a.Accounts().Mint(t.Context(), acc.Email)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	var broken, silent atomic.Bool
	var fetches atomic.Int32
	a.UsePolicies(func(ctx context.Context, resource string) (*iampb.Policy, error) {
		fetches.Add(1)
		if broken.Load() {
			return nil, errors.New("disk on fire")
		}
		if silent.Load() {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		if resource != table {
			return nil, fault.NotFound
		}
		return &iampb.Policy{Bindings: parseBindings("roles/bigtable.user serviceAccount:" + acc.Email)}, nil
	})
	tok := parseAccount(t, file).token(nil)
	try := func() error {
		info := &tap.Info{FullMethodName: bigtablepb.Bigtable_MutateRow_FullMethodName, Header: metadata.MD{"authorization": {"Bearer " + tok}}}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		ctx, err := a.Tap(ctx, info)
		if err != nil {
			return err
		}
		_, err = a.Unary(ctx, mutateRowRequest(t), &grpc.UnaryServerInfo{FullMethod: info.FullMethodName}, func(context.Context, any) (any, error) { return nil, nil })
		return err
	}
	if err := try(); err != nil {
		t.Fatal(err)
	}
	n := fetches.Load()
	for range 100 {
		if err := try(); err != nil {
			t.Fatal(err)
		}
	}
	if fetches.Load() != n {
		t.Errorf("%d fetches for 100 requests", fetches.Load()-n)
	}
	later := func(d time.Duration) {
		t.Helper()
		c.ahead.Store(int64(d))
		if err := a.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	broken.Store(true)
	later(30 * time.Second)
	if err := try(); err != nil {
		t.Error(err)
	}
	later(90 * time.Second)
	if err := try(); fault.KindOf(err) != fault.Unavailable {
		t.Error(err)
	}
	broken.Store(false)
	if err := try(); err != nil {
		t.Error(err)
	}
	silent.Store(true)
	later(100 * time.Second)
	n = fetches.Load()
	start := time.Now()
	for range 1000 {
		if err := try(); err != nil {
			t.Fatal(err)
		}
	}
	// The clock goes on by itself: both policies are asked for again after each second.
	took := time.Since(start)
	if most := 2 * (1 + int32(took/time.Second)); fetches.Load()-n > most || took > 5*time.Second {
		t.Errorf("%d fetches for 1,000 requests in %v", fetches.Load()-n, took)
	}
	silent.Store(false)
	later(103 * time.Second)
	if err := try(); err != nil {
		t.Error(err)
	}
}

func TestClose(t *testing.T) {
	defer leaktest.None(t, goleak.IgnoreCurrent())
	a, err := auth.Open(t.Context(), model.New(model.Options{}), auth.Options{Refresh: time.Millisecond, Issuers: []auth.Issuer{{URL: "http://127.0.0.1:1", Audience: "x"}},
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Millisecond)
	a.Close()
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]auth.Options{
		"http issuer":  {Issuers: []auth.Issuer{{URL: "http://example.com", Audience: "x"}}},
		"no audience":  {Issuers: []auth.Issuer{{URL: "https://example.com"}}},
		"no URL":       {Issuers: []auth.Issuer{{Audience: "x"}}},
		"negative":     {Refresh: -1},
		"missing file": {TokenFile: "/nowhere/at/all"},
	} {
		if a, err := auth.Open(t.Context(), model.New(model.Options{}), o); err == nil {
			a.Close()
			t.Errorf("%s is accepted", name)
		}
	}
}

// TestConcurrent changes accounts and policies while others log in.
func TestConcurrent(t *testing.T) {
	f := newFixture(t, auth.Options{Refresh: time.Millisecond})
	acc := f.account("some-acc", false)
	f.grant(project, "roles/bigtable.reader "+acc.member())
	tok := acc.token(nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var wg sync.WaitGroup
	conn := f.connect(tok)
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				// ctx ends the loop, not a call: no error of one is expected.
				if _, err := bigtableClient(conn).PingAndWarm(t.Context(), ping); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := 0; ctx.Err() == nil; i++ {
		f.a.Forget()
		email := "acc-" + string(rune('a'+i%26)) + "-x"
		if a, err := f.a.Accounts().Create(t.Context(), "p", email, "", "", false); err == nil {
			_ = f.a.Accounts().Delete(t.Context(), a.Email)
		}
	}
	wg.Wait()
}
