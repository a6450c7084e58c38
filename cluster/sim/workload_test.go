//go:build sim

package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/view"
)

// may tells whether a call may fail so in a storm.
func may(err error) bool {
	return errors.Is(err, fault.Unavailable) || errors.Is(err, fault.Exhausted) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// within calls do with as long as a call may take.
func within(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return do(ctx)
}

// try calls do until it does not fail as calls may in a storm, or stop is
// closed.
func try(ctx context.Context, stop chan struct{}, do func(context.Context) error) (err error) {
	for {
		if err = within(ctx, do); err == nil || !may(err) {
			return err
		}
		select {
		case <-stop:
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// A work is what a storm is survived with: each checks something of its own.
type work struct {
	t      *testing.T
	client *client.Client
	rng    *rand.Rand
	id     int
	done   int // times that it could check what it is about
}

func (w *work) bad(format string, args ...any) { w.t.Errorf(format, args...) }

// set writes a value to a row; the larger one stays, whatever comes last.
func (w *work) set(ctx context.Context, table, family, key string, n int) error {
	return within(ctx, func(ctx context.Context) error {
		return w.client.MutateRow(ctx, table, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{
			{Op: row.SetCell, Family: family, Qualifier: []byte("q"), Timestamp: int64(n) * 1000, Value: []byte(strconv.Itoa(n))}}})
	})
}

// all returns the values of all cells of a table, by row.
func (w *work) all(ctx context.Context, table string, r row.Range) (map[string][]string, error) {
	var got map[string][]string
	err := within(ctx, func(ctx context.Context) error {
		c := &cells{out: map[string][]string{}}
		_, err := w.client.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{r}}, c)
		got = c.out
		return err
	})
	return got, err
}

type cells struct {
	out map[string][]string
	key string
}

func (c *cells) StartRow(key []byte) { c.key = string(key) }
func (c *cells) Cell(x *row.Cell) {
	c.out[c.key] = append(c.out[c.key], x.Family+":"+string(x.Value))
}
func (c *cells) EndRow() (bool, error) { return false, nil }
func (c *cells) Scanned([]byte)        {}
func (c *cells) Flush() error          { return nil }

// backups makes a table, writes to it, backs it up meanwhile, and restores that
// twice: at once, and when the source was written on or is gone, and what nobody
// names any more has been swept. Both times it holds what the table held at one
// moment of the call.
func (w *work) backups(ctx context.Context, stop chan struct{}) {
	for round := 0; ; round++ {
		select {
		case <-stop:
			return
		default:
		}
		w.backup(ctx, stop, fmt.Sprintf("%d-%d", w.id, round))
	}
}

func (w *work) backup(ctx context.Context, stop chan struct{}, name string) {
	const prefix = "projects/p/instances/i/tables/"
	source, backup := prefix+"s"+name, "projects/p/instances/i/clusters/c/backups/"+name
	err := try(ctx, stop, func(ctx context.Context) error {
		_, err := w.client.CreateTable(ctx, &schema.Table{Name: source, Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}}},
			[][]byte{[]byte("r2"), []byte("r5")})
		if errors.Is(err, fault.AlreadyExists) {
			err = nil // by a call whose answer was lost
		}
		return err
	})
	if err != nil {
		if !may(err) {
			w.bad("create %s: %v", source, err)
		}
		return
	}
	// One writer: what is acknowledged before a write begins is there if the write
	// is.
	var mu sync.Mutex
	acked, last := map[int]bool{}, 0
	writing, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 1; ; n++ {
			select {
			case <-writing:
				return
			case <-time.After(5 * time.Millisecond):
			}
			mu.Lock()
			last = n
			mu.Unlock()
			err := w.set(ctx, source, "f", fmt.Sprint("r", n%8), n)
			switch {
			case err == nil:
				mu.Lock()
				acked[n] = true
				mu.Unlock()
			case !may(err):
				w.bad("write %s: %v", source, err)
			}
		}
	}()
	time.Sleep(time.Duration(w.rng.IntN(400)) * time.Millisecond)
	mu.Lock()
	before := maps.Clone(acked)
	mu.Unlock()
	// A name for each attempt: one of unknown outcome may have made a backup.
	attempt := 0
	err = try(ctx, stop, func(ctx context.Context) error {
		attempt++
		_, err := w.client.CreateBackup(ctx, source, &schema.Backup{Name: fmt.Sprint(backup, "-", attempt)})
		return err
	})
	backup = fmt.Sprint(backup, "-", attempt)
	mu.Lock()
	after := last
	mu.Unlock()
	if w.rng.IntN(2) == 0 { // the source is written on
		time.Sleep(time.Duration(w.rng.IntN(300)) * time.Millisecond)
	}
	close(writing)
	<-stopped
	if err != nil {
		if !may(err) {
			w.bad("back up %s: %v", source, err)
		}
		return
	}
	restored := prefix + "x" + name
	first, ok := w.restore(ctx, stop, backup, restored+"-1")
	if !ok {
		return
	}
	has := map[int]bool{}
	for key, values := range first {
		for _, v := range values {
			n, err := strconv.Atoi(v[len("f:"):])
			if err != nil || key != fmt.Sprint("r", n%8) || n > after {
				w.bad("backup %s has %q in row %s; when it was made %d had begun", backup, v, key, after)
			}
			has[n] = true
		}
	}
	newest := 0
	for n := range has {
		newest = max(newest, n)
	}
	for n := range acked {
		if !has[n] && (before[n] || n < newest) {
			w.bad("backup %s has %d, and not %d, which was acknowledged before; acknowledged when it was begun: %v", backup, newest, n, before[n])
		}
	}
	gone := func(err error) bool { return err == nil || errors.Is(err, fault.NotFound) }
	switch w.rng.IntN(3) {
	case 0:
		err = try(ctx, stop, func(ctx context.Context) error { return w.client.DeleteTable(ctx, source) })
	case 1:
		err = try(ctx, stop, func(ctx context.Context) error { return w.client.DropRowRange(ctx, source, []byte("r")) })
	default:
		err = try(ctx, stop, func(ctx context.Context) error { return w.client.DeleteTable(ctx, restored+"-1") })
	}
	if !gone(err) && !may(err) {
		w.bad("drop what was backed up: %v", err)
	}
	select { // for sweeps and compactions
	case <-time.After(time.Duration(1+w.rng.IntN(8)) * time.Second):
	case <-stop:
	}
	second, ok := w.restore(ctx, stop, backup, restored+"-2")
	if !ok {
		return
	}
	if !maps.EqualFunc(first, second, slices.Equal) {
		w.bad("I11: backup %s restores to %v and, later, to %v", backup, first, second)
	}
	w.done++
	if w.rng.IntN(2) == 0 {
		if err := try(ctx, stop, func(ctx context.Context) error { return w.client.DeleteBackup(ctx, backup) }); !gone(err) && !may(err) {
			w.bad("delete backup %s: %v", backup, err)
		}
	}
	for _, name := range []string{restored + "-1", restored + "-2", source} {
		if err := try(ctx, stop, func(ctx context.Context) error { return w.client.DeleteTable(ctx, name) }); !gone(err) && !may(err) {
			w.bad("delete %s: %v", name, err)
		}
	}
}

// restore makes a table of a backup and returns what it holds.
func (w *work) restore(ctx context.Context, stop chan struct{}, backup, name string) (got map[string][]string, ok bool) {
	err := try(ctx, stop, func(ctx context.Context) error {
		_, err := w.client.RestoreTable(ctx, backup, name, func(*schema.Table) error { return nil })
		if errors.Is(err, fault.AlreadyExists) {
			err = nil // by a call whose answer was lost
		}
		return err
	})
	if err == nil {
		err = try(ctx, stop, func(ctx context.Context) (err error) {
			got, err = w.all(ctx, name, row.All)
			return err
		})
	}
	if err != nil && !may(err) {
		w.bad("restore %s: %v", name, err)
	}
	return got, err == nil
}

// drops deletes ranges of rows: none comes back, and no other goes.
func (w *work) drops(ctx context.Context, stop chan struct{}) {
	kept, dropped := map[string]bool{}, map[string]bool{}
	check := func() {
		got, err := w.all(ctx, tableName, row.Prefix(fmt.Append(nil, "k4-", w.id)))
		if err != nil {
			if !may(err) {
				w.bad("%v", err)
			}
			return
		}
		w.done++
		for k := range got {
			if dropped[k] {
				w.bad("row %s was dropped, and is there", k)
			}
		}
		for k := range kept {
			if got[k] == nil {
				w.bad("row %s was kept, and is not there", k)
			}
		}
	}
	for round := 0; ; round++ {
		select {
		case <-stop:
			check()
			return
		case <-time.After(time.Duration(w.rng.IntN(600)) * time.Millisecond):
		}
		sure := map[string]bool{}
		prefix := fmt.Sprintf("k4-%d-d%d-", w.id, round)
		for i := range 4 {
			for _, k := range []string{fmt.Sprint(prefix, i), fmt.Sprintf("k4-%d-k%d-%d", w.id, round, i)} {
				err := w.set(ctx, tableName, "b", k, 1)
				if sure[k] = err == nil; err != nil && !may(err) {
					w.bad("%v", err)
				}
			}
		}
		err := within(ctx, func(ctx context.Context) error { return w.client.DropRowRange(ctx, tableName, []byte(prefix)) })
		if err != nil && !may(err) {
			w.bad("drop %s: %v", prefix, err)
		}
		for k, ok := range sure {
			switch {
			case !ok: // it may still come
			case len(k) > len(prefix) && k[:len(prefix)] == prefix:
				if err == nil {
					dropped[k] = true
				}
			default:
				kept[k] = true
			}
		}
		if w.rng.IntN(3) == 0 {
			check()
		}
	}
}

// schemas adds families and takes them away: once that is acknowledged every
// server judges by it.
func (w *work) schemas(ctx context.Context, stop chan struct{}) {
	for round := 1; ; round++ {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(w.rng.IntN(800)) * time.Millisecond):
		}
		family := fmt.Sprintf("w%d-%d", w.id, round)
		update := func(change func(*schema.Table) error) bool {
			err := within(ctx, func(ctx context.Context) error {
				_, err := w.client.UpdateTable(ctx, tableName, change)
				return err
			})
			if err != nil && !may(err) {
				w.bad("%v", err)
			}
			return err == nil
		}
		if !update(func(t *schema.Table) error {
			t.AddFamily(schema.Family{Name: family, GC: &schema.GCRule{MaxVersions: int32(1 + w.rng.IntN(3))}})
			return nil
		}) {
			continue
		}
		for i := range 3 {
			key := fmt.Sprintf("k%d-s%d", 1+3*i, w.id)
			if err := w.set(ctx, tableName, family, key, round); err != nil && !may(err) {
				w.bad("a family that was added is not known: %v", err)
			}
		}
		if !update(func(t *schema.Table) error {
			delete(t.Families, family)
			return nil
		}) {
			continue
		}
		w.done++
		for i := range 3 {
			key := fmt.Sprintf("k%d-s%d", 1+3*i, w.id)
			if err := w.set(ctx, tableName, family, key, round); err == nil {
				w.bad("a write to family %s was accepted after it was deleted", family)
			}
			got, err := w.all(ctx, tableName, row.Single([]byte(key)))
			if err != nil && !may(err) {
				w.bad("%v", err)
			}
			for _, v := range got[key] {
				if len(v) > len(family) && v[:len(family)+1] == family+":" {
					w.bad("family %s was deleted and has %q", family, v)
				}
			}
		}
	}
}

// views changes an authorized view, which is a record, and reads through it.
func (w *work) views(ctx context.Context, stop chan struct{}) {
	key := fmt.Sprint("views/", w.id)
	acked := 0
	for n := 1; ; n++ {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(w.rng.IntN(300)) * time.Millisecond):
		}
		var value []byte
		var version uint64
		err := within(ctx, func(ctx context.Context) (err error) {
			value, version, err = w.client.GetRecord(ctx, key)
			if errors.Is(err, fault.NotFound) {
				err = nil
			}
			return err
		})
		if err != nil {
			if !may(err) {
				w.bad("%v", err)
			}
			continue
		}
		pb := new(adminpb.AuthorizedView_SubsetView)
		if err := proto.Unmarshal(value, pb); err != nil {
			w.bad("%v", err)
		}
		// It lets through rows k0 to k<n mod 9> and family a, and is of generation n.
		if got := len(pb.GetRowPrefixes()); got < acked {
			w.bad("view %s is of generation %d after %d was acknowledged", key, got, acked)
		}
		if len(value) > 0 {
			v := view.New(key, pb)
			only, err := v.Filter(nil)
			if err != nil {
				w.bad("%v", err)
			}
			c := &cells{out: map[string][]string{}}
			err = within(ctx, func(ctx context.Context) error {
				c.out = map[string][]string{}
				_, err := w.client.ReadRows(ctx, &scan.Request{Table: tableName, Ranges: v.Intersect([]row.Range{row.All}), Filter: only}, c)
				return err
			})
			if err != nil && !may(err) {
				w.bad("%v", err)
			}
			w.done++
			for k, values := range c.out {
				if !v.HasRow([]byte(k)) {
					w.bad("view %s lets row %q through", key, k)
				}
				for _, x := range values {
					if x[:2] != "a:" {
						w.bad("view %s lets %q of row %q through", key, x, k)
					}
				}
			}
		}
		next := &adminpb.AuthorizedView_SubsetView{FamilySubsets: map[string]*adminpb.AuthorizedView_FamilySubsets{"a": {QualifierPrefixes: [][]byte{nil}}}}
		for i := range len(pb.GetRowPrefixes()) + 1 {
			next.RowPrefixes = append(next.RowPrefixes, fmt.Append(nil, "k", (n+i)%9))
		}
		b, err := proto.Marshal(next)
		if err != nil {
			w.bad("%v", err)
		}
		err = within(ctx, func(ctx context.Context) error {
			_, err := w.client.PutRecord(ctx, key, b, version)
			return err
		})
		switch {
		case err == nil:
			acked = len(next.RowPrefixes)
		case !may(err) && !errors.Is(err, fault.Aborted):
			w.bad("%v", err)
		}
	}
}
