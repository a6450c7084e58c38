package catalog

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

func put(t *testing.T, l lock.Service, key, value string) {
	t.Helper()
	i, err := l.Get(t.Context(), key)
	if err == nil || errors.Is(err, fault.NotFound) {
		_, err = l.Put(t.Context(), key, []byte(value), i.Version)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestCopies: a lock service that is older than the store is known for ever, and
// a copy makes it what it was.
func TestCopies(t *testing.T) {
	ctx := t.Context()
	store, err := objectstore.OpenLocal(vfs.NewMem(), "store", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	of := func() *Copier { return &Copier{Lock: memory.New().Client(nil, nil), Store: store} }
	take := func(c *Copier) error { return c.Take(ctx, time.Unix(1000, 0)) }
	c, old := of(), of()
	for i := range 2 * copiesKept {
		put(t, c.Lock, TablesPrefix+"t", string(rune('a'+i)))
		put(t, c.Lock, ServersPrefix+"s", "a session's")
		if err := take(c); err != nil {
			t.Fatal(err)
		}
		if i == 3 {
			// A snapshot of it.
			items, _, err := c.Lock.List(ctx, "")
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range items {
				put(t, old.Lock, i.Key, string(i.Value))
			}
		}
	}
	names, err := c.names(ctx)
	if err != nil || len(names) != copiesKept {
		t.Errorf("%d copies, %v", len(names), err)
	}
	if err := take(c); err != nil {
		t.Fatal(err)
	}
	if again, _ := c.names(ctx); len(again) != len(names) || again[0] != names[0] {
		t.Error("a copy is taken though nothing has changed")
	}
	if err := c.Check(ctx); err != nil {
		t.Error(err)
	}
	// What was put back does not come level by going on.
	for range 30 {
		put(t, old.Lock, TablesPrefix+"u", time.Now().String())
		for _, err := range []error{old.Check(ctx), take(old)} {
			if !errors.Is(err, fault.FailedPrecondition) {
				t.Fatalf("an old lock service: %v", err)
			}
		}
	}
	if err := of().Check(ctx); !errors.Is(err, fault.FailedPrecondition) {
		t.Errorf("an empty lock service: %v", err)
	}
	// The newest is damaged.
	n := names[len(names)-1]
	b, err := store.Get(ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := store.Delete(ctx, n); err != nil {
		t.Fatal(err)
	}
	if err := store.PutIfAbsent(ctx, n, b); err != nil {
		t.Fatal(err)
	}
	cp, err := old.Newest(ctx)
	if err != nil || string(cp.Items[TablesPrefix+"t"]) != string(rune('a'+2*copiesKept-2)) || cp.Items[ServersPrefix+"s"] != nil {
		t.Fatalf("the newest copy is %+v, %v", cp, err)
	}
	if err := old.Restore(ctx, cp); err != nil {
		t.Fatal(err)
	}
	if i, err := old.Lock.Get(ctx, TablesPrefix+"t"); err != nil || string(i.Value) != string(cp.Items[TablesPrefix+"t"]) {
		t.Errorf("restored is %q, %v", i.Value, err)
	}
	if _, err := old.Lock.Get(ctx, TablesPrefix+"u"); !errors.Is(err, fault.NotFound) {
		t.Errorf("what the copy does not have: %v", err)
	}
	if err := take(old); err != nil {
		t.Errorf("a lock service that was restored: %v", err)
	}
	if err := c.Check(ctx); !errors.Is(err, fault.FailedPrecondition) {
		t.Errorf("the former one is older now: %v", err)
	}
}

// A slowLock does something after a list of everything was read, before it is
// answered.
type slowLock struct {
	lock.Service
	listed func()
}

func (l *slowLock) List(ctx context.Context, prefix string) ([]lock.Item, int64, error) {
	items, revision, err := l.Service.List(ctx, prefix)
	if prefix == "" {
		l.listed()
	}
	return items, revision, err
}

// TestCopiesOvertake: what a master has read of the lock service before another
// one copied it does not become the newest copy, however late it comes. Its
// successor would not take its own again, as nothing has changed.
func TestCopiesOvertake(t *testing.T) {
	ctx := t.Context()
	store, err := objectstore.OpenLocal(vfs.NewMem(), "store", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l := memory.New().Client(nil, nil)
	put(t, l, TablesPrefix+"t", "old")
	next := &Copier{Lock: l, Store: store}
	deposed := &Copier{Store: store, Lock: &slowLock{l, func() {
		put(t, l, TablesPrefix+"t", "new")
		if err := next.Take(ctx, time.Unix(2, 0)); err != nil {
			t.Error(err)
		}
	}}}
	before := time.Now()
	if err := deposed.Take(ctx, time.Unix(1, 0)); !errors.Is(err, fault.Aborted) {
		t.Errorf("the copy of a deposed master: %v", err)
	}
	if deposed.Covers(before) || !next.Covers(before) || next.Covers(time.Now()) {
		t.Error("who has a copy is mistaken about it")
	}
	cp, err := next.Newest(ctx)
	if err != nil || string(cp.Items[TablesPrefix+"t"]) != "new" {
		t.Errorf("the newest copy has %q, %v", cp.Items[TablesPrefix+"t"], err)
	}
}

// TestAge: a process without a store knows a lock service that was put back by
// what it has seen itself, or was told of, and one that was recovered meanwhile.
func TestAge(t *testing.T) {
	ctx := t.Context()
	l := memory.New().Client(nil, nil)
	a := NewRollbackGuard(l)
	look := func(want error) {
		t.Helper()
		if err := a.Check(ctx); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Fatalf("%v, not %v", err, want)
		}
	}
	set := func(key, value string) {
		t.Helper()
		i, err := l.Get(ctx, key)
		if err != nil && !errors.Is(err, fault.NotFound) {
			t.Fatal(err)
		}
		if _, err := l.Put(ctx, key, []byte(value), i.Version); err != nil {
			t.Fatal(err)
		}
	}
	look(nil)
	set(copyKey, "7")
	look(nil)
	if a.Number() != 7 {
		t.Errorf("number %d", a.Number())
	}
	set(copyKey, "6")
	look(fault.FailedPrecondition)
	set(copyKey, "8")
	look(nil)
	a.Observe(10)
	look(fault.FailedPrecondition)
	set(copyKey, "10")
	look(nil)
	set(EpochsKey, "5")
	look(fault.FailedPrecondition)
	set(EpochsKey, "six")
	look(fault.Corruption)
}

// TestCopiesHaveNoSessions: what goes with a session is in no copy, nor is it restored from
// one that an earlier version took. Nobody would ever delete it.
func TestCopiesHaveNoSessions(t *testing.T) {
	ctx := t.Context()
	store, err := objectstore.OpenLocal(vfs.NewMem(), "store", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const table = TablesPrefix + "t"
	held := []string{MasterKey, ServersPrefix + "1", AppliedKey(1), HBasePrefix + "host,16020,1", DrainingPrefix + "s"}
	l := memory.New().Client(nil, nil)
	session, err := l.NewSession(ctx, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(context.WithoutCancel(ctx))
	for _, key := range held {
		if _, err := session.Hold(ctx, key, nil); err != nil {
			t.Fatal(err)
		}
	}
	put(t, l, table, "v")
	if err := (&Copier{Lock: l, Store: store}).Take(ctx, time.Unix(1000, 0)); err != nil {
		t.Fatal(err)
	}
	earlier := Copy{Number: 2, Taken: time.Unix(1001, 0), Items: map[string][]byte{table: []byte("v")}}
	for _, key := range held {
		earlier.Items[key] = nil
	}
	for _, of := range []string{"this", "an earlier"} {
		if of != "this" {
			if err := store.PutIfAbsent(ctx, copyName(earlier.Number), earlier.marshal()); err != nil {
				t.Fatal(err)
			}
		}
		lost := &Copier{Lock: memory.New().Client(nil, nil), Store: store}
		put(t, lost.Lock, HBasePrefix+"host,16020,1", "of an earlier recovery")
		cp, err := lost.Newest(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := lost.Restore(ctx, cp); err != nil {
			t.Fatal(err)
		}
		for _, key := range held {
			if _, err := lost.Lock.Get(ctx, key); !errors.Is(err, fault.NotFound) {
				t.Errorf("%s is restored from a copy of %s version: %v", key, of, err)
			}
		}
		if _, err := lost.Lock.Get(ctx, table); err != nil {
			t.Errorf("%s is not restored from a copy of %s version: %v", table, of, err)
		}
	}
}

// TestCopiesHaveNoSecrets: what authenticates tokens is in no copy, nor is it
// restored from one that an earlier version took; those are deleted, and what they
// tell is worth nothing any more.
func TestCopiesHaveNoSecrets(t *testing.T) {
	ctx := t.Context()
	store, err := objectstore.OpenLocal(vfs.NewMem(), "store", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const secret, value = SecretsPrefix + "access-tokens", "32 bytes that nobody should know"
	l := memory.New().Client(nil, nil)
	put(t, l, RecordsPrefix+"accounts/a", "public")
	put(t, l, secret, value)
	// As an earlier version did it, twice.
	for n := uint64(1); n <= 2; n++ {
		cp := Copy{Number: n, Taken: time.Unix(1000, 0), Items: map[string][]byte{secret: []byte(value), RecordsPrefix + "accounts/a": []byte("public")}}
		if err := store.PutIfAbsent(ctx, copyName(n), cp.marshal()); err != nil {
			t.Fatal(err)
		}
		put(t, l, copyKey, fmt.Sprint(n))
	}
	recovered := &Copier{Lock: memory.New().Client(nil, nil), Store: store}
	put(t, recovered.Lock, secret, value)
	c := &Copier{Lock: l, Store: store}
	cp, err := recovered.Newest(ctx)
	if err != nil || cp.Items[secret] != nil || string(cp.Items[RecordsPrefix+"accounts/a"]) != "public" {
		t.Fatalf("the newest copy is %+v, %v", cp, err)
	}
	if err := recovered.Restore(ctx, cp); err != nil {
		t.Fatal(err)
	}
	if i, err := recovered.Lock.Get(ctx, secret); !errors.Is(err, fault.NotFound) {
		t.Errorf("a recovery leaves the secret: %q, %v", i.Value, err)
	}
	if err := c.Take(ctx, time.Unix(1001, 0)); err != nil {
		t.Fatal(err)
	}
	if i, err := l.Get(ctx, secret); !errors.Is(err, fault.NotFound) {
		t.Errorf("a secret that was in the store is still good: %q, %v", i.Value, err)
	}
	put(t, l, secret, "another")
	put(t, l, RecordsPrefix+"accounts/b", "public")
	if err := c.Take(ctx, time.Unix(1002, 0)); err != nil {
		t.Fatal(err)
	}
	if i, err := l.Get(ctx, secret); err != nil || string(i.Value) != "another" {
		t.Errorf("a secret that was in no copy: %q, %v", i.Value, err)
	}
	names, err := c.names(ctx)
	if err != nil || len(names) != 2 {
		t.Fatalf("copies %v, %v", names, err)
	}
	for _, name := range names {
		b, err := store.Get(ctx, name)
		if err != nil || strings.Contains(string(b), "access-tokens") || strings.Contains(string(b), base64.StdEncoding.EncodeToString([]byte("another"))) {
			t.Errorf("copy %s tells of secrets: %v", name, err)
		}
	}
}
