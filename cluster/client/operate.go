package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/locality"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// resolveTable returns the table that an operator means. It may be given by its full name,
// by the last part of it if that is unique, or as METADATA.
func (c *Client) resolveTable(ctx context.Context, name string) (*catalog.Table, error) {
	names := func(yield func(string) bool) {
		if !yield(metastore.Schema.Name) {
			return
		}
		for _, t := range c.o.Schemas.All() {
			if sch := t.Schema(); sch.DeleteTime.IsZero() && !yield(sch.Name) {
				return
			}
		}
	}
	full, err := locality.FullName(name, names)
	if errors.Is(err, fault.NotFound) {
		if _, err = c.o.Schemas.Refresh(ctx, ""); err == nil {
			full, err = locality.FullName(name, names)
		}
	}
	if err != nil {
		return nil, err
	}
	return c.o.Schemas.Named(ctx, full)
}

// TableNamed returns the full name of a table that is given as an operator means it.
func (c *Client) TableNamed(ctx context.Context, name string) (string, error) {
	t, err := c.resolveTable(ctx, name)
	if err != nil {
		return "", err
	}
	return t.Schema().Name, nil
}

func isMetadata(t *catalog.Table) bool { return t.Schema().ID == metastore.Table }

// Tablets returns what EachTablet calls each with.
func (c *Client) Tablets(ctx context.Context, name string) (out []tablet.Info, err error) {
	err = c.EachTablet(ctx, name, func(i *tablet.Info) error {
		out = append(out, *i)
		return nil
	})
	return out, err
}

// EachTablet calls each with the tablets of a table, in the order of rows; of all tables,
// METADATA last, if name is empty. Tablets whose servers cannot be asked have no figures of
// their servers. An error of each ends it. What each gets is its own until it returns.
func (c *Client) EachTablet(ctx context.Context, name string, each func(*tablet.Info) error) error {
	var tables []*schema.Table
	id := rpc.AllTables
	if name != "" {
		t, err := c.resolveTable(ctx, name)
		if err != nil {
			return err
		}
		tables = append(tables, t.Schema())
		id = t.Schema().ID
	} else {
		tables = c.allTables()
	}
	answers, err := c.describe(ctx, id)
	if err != nil {
		return err
	}
	served := byTable(answers)
	one := new(tablet.Info)
	tell := func(of []described, table string) error {
		for i := range of {
			of[i].describe(one, table)
			if err := each(one); err != nil {
				return err
			}
		}
		return nil
	}
	for _, sch := range tables {
		of := served[sch.ID]
		left, right, rest, err := c.readUnknown(ctx, sch, of)
		if err != nil && (name != "" || !errors.Is(err, fault.NotFound)) {
			return err
		}
		if err := tell(of[:left], sch.Name); err != nil {
			return err
		}
		for i := range rest {
			if err := each(&rest[i]); err != nil {
				return err
			}
		}
		if err := tell(of[right:], sch.Name); err != nil {
			return err
		}
	}
	return nil
}

// allTables returns all tables by their names, METADATA last.
func (c *Client) allTables() (tables []*schema.Table) {
	for _, t := range c.o.Schemas.All() {
		if sch := t.Schema(); sch.DeleteTime.IsZero() {
			tables = append(tables, sch)
		}
	}
	slices.SortFunc(tables, func(a, b *schema.Table) int { return strings.Compare(a.Name, b.Name) })
	return append(tables, metastore.Schema)
}

// TableNames returns the full names of the tables whose tablets Tablets describes.
func (c *Client) TableNames() (names []string) {
	for _, t := range c.allTables() {
		names = append(names, t.Name)
	}
	return names
}

// A described tablet is one as its server describes it.
type described struct {
	*rpc.TabletDetail
	server string
	begins uint64 // the first bytes of Start, which mostly tell how two compare
}

// byTable returns the tablets that servers describe, by their tables and in the order of rows.
// What two servers describe is as the one with the later epoch has it.
func byTable(answers []description) map[uint64][]described {
	all := map[uint64][]described{}
	sizes := map[uint64]int{}
	for _, a := range answers {
		for i := range a.tablets {
			sizes[a.tablets[i].Table]++
		}
	}
	for _, a := range answers {
		for i := range a.tablets {
			d := described{TabletDetail: &a.tablets[i], server: a.server}
			var begins [8]byte
			copy(begins[:], d.Start)
			d.begins = binary.BigEndian.Uint64(begins[:])
			of, ok := all[d.Table]
			if !ok {
				of = make([]described, 0, sizes[d.Table])
			}
			all[d.Table] = append(of, d)
		}
	}
	for id, of := range all {
		slices.SortFunc(of, func(a, b described) int {
			if a.begins != b.begins {
				return cmp.Compare(a.begins, b.begins)
			}
			return cmp.Or(bytes.Compare(a.Start, b.Start), cmp.Compare(a.Tablet, b.Tablet), cmp.Compare(b.Epoch, a.Epoch))
		})
		all[id] = slices.CompactFunc(of, func(a, b described) bool { return a.Tablet == b.Tablet })
	}
	return all
}

// readUnknown reads METADATA of the tablets of a table that no server describes: from the
// first of them to the last. What a server serves is what METADATA says of it. The table's
// tablets are served[:left], rest and served[right:].
func (c *Client) readUnknown(ctx context.Context, sch *schema.Table, served []described) (left, right int, rest []tablet.Info, err error) {
	left, right, between := unknown(served)
	if left > 0 && len(between.Start) == 0 {
		return left, right, nil, nil
	}
	details := map[metadata.TabletID]described{}
	for _, d := range served {
		details[d.Tablet] = d
	}
	err = c.tabletRows(ctx, sch.ID, between, func(r *metadata.Row) error {
		// A tablet that was merged, or split, has another row by now.
		for n := len(rest); n > 0 && bytes.Compare(rest[n-1].Rows.Start, r.Start) >= 0; n-- {
			rest = rest[:n-1]
		}
		for left > 0 && bytes.Compare(served[left-1].Start, r.Start) >= 0 {
			left--
		}
		for right < len(served) && (len(r.End) == 0 || bytes.Compare(served[right].Start, r.End) < 0) {
			right++
		}
		rest = append(rest, info(r, sch.Name, details[r.Tablet]))
		return nil
	})
	return left, right, rest, err
}

// unknown returns how many of a table's tablets, in the order of rows, follow each other from
// the table's first row on, from which on they do up to its last, and the rows between. There
// are no rows between, and between.Start is empty, if left is all of them.
func unknown(served []described) (left, right int, between row.Range) {
	for ; left < len(served) && served[left].whole() && bytes.Equal(served[left].Start, between.Start); left++ {
		if between.Start = served[left].End; len(between.Start) == 0 {
			return left + 1, left + 1, between
		}
	}
	right = len(served)
	for ; right > left && served[right-1].whole() && bytes.Equal(served[right-1].End, between.End) && bytes.Compare(served[right-1].Start, between.Start) >= 0; right-- {
		between.End = served[right-1].Start
	}
	return left, right, between
}

// whole tells whether the description has everything. A server of an earlier version leaves out
// Kept.
func (d described) whole() bool { return d.Kept != nil }

// describe sets i to a tablet of a table as its server describes it.
func (d described) describe(i *tablet.Info, table string) {
	*i = tablet.Info{Table: table, Tablet: d.Tablet, Rows: row.Range{Start: d.Start, End: d.End}, Server: d.server}
	d.tell(i)
	if d.Kept != nil {
		i.Changes = tablet.Kept(*d.Kept)
	}
}

// tell adds what only the server of a tablet knows.
func (d described) tell(i *tablet.Info) {
	i.State = tablet.State{Bytes: d.Bytes, MemtableBytes: d.MemtableBytes, Runs: d.Runs, Files: d.Files, LastMajor: d.LastMajor}
	i.Redo = d.Redo
	i.Load = tablet.Load{Reads: d.ReadCalls, RowsRead: d.Reads, RowsWritten: d.Writes, Bytes: d.BytesRate}
}

// info describes the tablet of a METADATA row, with what its server tells, if it does.
func info(r *metadata.Row, table string, d described) tablet.Info {
	i := tablet.Info{Table: table, Tablet: r.Tablet, Rows: row.Range{Start: r.Start, End: r.End}, Changes: tablet.KeptOf(r)}
	if a := r.Assignment; a != nil && a.State == metadata.Open {
		i.Server = a.Server
	}
	if d.TabletDetail != nil {
		d.tell(&i)
		return i
	}
	i.Files = len(r.Files)
	for _, f := range r.Files {
		i.Bytes += f.Size
	}
	if r.MajorTime > 0 {
		i.LastMajor = time.Unix(r.MajorTime, 0).UTC()
	}
	return i
}

// SplitKey implements master.Tablets of HBase.
func (c *Client) SplitKey(ctx context.Context, name string, key []byte) (at []byte, ok bool, err error) {
	t, err := c.resolveTable(ctx, name)
	if err != nil {
		return nil, false, err
	}
	err = c.withTablet(ctx, t, key, func(s rpc.TabletServer, _ rpc.Target, l location) error {
		at, ok, err = s.SplitKey(ctx, l.tablet)
		return err
	})
	return at, ok, err
}

// SplitAt splits the tablet of a table that serves key at key.
func (c *Client) SplitAt(ctx context.Context, name string, key []byte) error {
	t, err := c.resolveTable(ctx, name)
	if err != nil {
		return err
	}
	return c.withTabletRow(ctx, t, key, func(r *metadata.Row) error { return c.Split(ctx, r, key) })
}

// MergeAt merges the tablet of a table that serves key with the one after it.
func (c *Client) MergeAt(ctx context.Context, name string, key []byte) error {
	t, err := c.resolveTable(ctx, name)
	if err != nil {
		return err
	}
	return c.withTabletRow(ctx, t, key, func(r *metadata.Row) error { return c.Merge(ctx, r) })
}

// MoveAt is MoveTablet of a tablet that need not stay.
func (c *Client) MoveAt(ctx context.Context, name string, key []byte, server string) error {
	return c.MoveTablet(ctx, name, key, server, false)
}

// MoveTablet moves the tablet of a table that serves key to the server of a name.
// If it is to stay, the master leaves it there until another move.
func (c *Client) MoveTablet(ctx context.Context, name string, key []byte, server string, stay bool) error {
	t, err := c.resolveTable(ctx, name)
	if err != nil {
		return err
	}
	return c.withTabletRow(ctx, t, key, func(r *metadata.Row) error { return c.Move(ctx, r, server, stay) })
}

// withTabletRow calls do with the METADATA row of the tablet that serves key, again if
// its server does not serve it any more.
func (c *Client) withTabletRow(ctx context.Context, t *catalog.Table, key []byte, do func(*metadata.Row) error) error {
	if len(key) > maxKey && !isMetadata(t) {
		return fault.New(fault.Invalid, "a row key has %d bytes at most", maxKey)
	}
	return c.retryNotServing(ctx, func() error {
		r, err := c.rowAt(ctx, t.Schema().ID, key)
		if err != nil {
			return err
		}
		return do(r)
	})
}

// A tabletPart is a tablet as it was when work on it was planned.
type tabletPart struct {
	row  *metadata.Row
	rows row.Range // that the work is about
}

// tabletParts returns a table, and its tablets that may serve a row of rows.
func (c *Client) tabletParts(ctx context.Context, name string, rows row.Range) (*catalog.Table, []tabletPart, error) {
	t, err := c.resolveTable(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	var out []tabletPart
	err = c.tabletRows(ctx, t.Schema().ID, rows, func(r *metadata.Row) error {
		out = append(out, tabletPart{r, row.Range{Start: r.Start, End: r.End}.Intersect(rows)})
		return nil
	})
	return t, out, err
}

// forEachPart calls do with the tablets that serve the rows of pieces: those of one
// server one after the other, servers beside each other. A tablet that is moved,
// split or merged before do did anything is looked up again. The first error
// ends it.
func (c *Client) forEachPart(ctx context.Context, t *catalog.Table, pieces []tabletPart, do func(context.Context, rpc.TabletServer, location) error) error {
	byServer := map[string][]tabletPart{}
	for _, p := range pieces {
		addr := ""
		if a := p.row.Assignment; a != nil {
			addr = a.Addr
		}
		byServer[addr] = append(byServer[addr], p)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var working sync.WaitGroup
	for _, mine := range byServer {
		working.Go(func() {
			for _, p := range mine {
				for rest := p.rows; ; {
					var end []byte
					err := c.withTablet(ctx, t, rest.Start, func(s rpc.TabletServer, _ rpc.Target, l location) error {
						end = l.rows.End
						return do(ctx, s, l)
					})
					if err == nil {
						err = context.Cause(ctx)
					}
					if err != nil {
						cancel(err)
						return
					}
					if len(end) == 0 || len(rest.End) > 0 && bytes.Compare(end, rest.End) >= 0 {
						break
					}
					rest.Start = end
				}
			}
		})
	}
	working.Wait()
	return context.Cause(ctx)
}

// FlushTablets writes the memtables of the tablets of a table that serve rows to
// SSTables.
func (c *Client) FlushTablets(ctx context.Context, name string, rows row.Range) error {
	t, pieces, err := c.tabletParts(ctx, name, rows)
	if err != nil {
		return err
	}
	return c.forEachPart(ctx, t, pieces, func(ctx context.Context, s rpc.TabletServer, l location) error {
		return s.Flush(ctx, []metadata.TabletID{l.tablet})
	})
}

// CompactTablets does a major compaction of the tablets of a table that serve rows,
// memtables included. report, if set, is called about once a second with estimates of how
// many bytes, of how many, have been compacted.
func (c *Client) CompactTablets(ctx context.Context, name string, rows row.Range, report func(done, total int64)) error {
	if report == nil {
		report = func(int64, int64) {}
	}
	t, pieces, err := c.tabletParts(ctx, name, rows)
	if err != nil {
		return err
	}
	return c.forEachWatched(ctx, t, pieces, report, func(ctx context.Context, s rpc.TabletServer, l location) error {
		return s.Compact(ctx, []metadata.TabletID{l.tablet})
	})
}

// VerifyTablets reads the SSTables of the tablets of a table that serve rows from
// the store and checks their checksums. It calls damaged for each that is
// damaged, one at a time, and report as CompactTablets does. Tablets that are split or
// merged meanwhile may be read twice.
func (c *Client) VerifyTablets(ctx context.Context, name string, rows row.Range, damaged func(tablet.ObjectDamage), report func(done, total int64)) error {
	t, pieces, err := c.tabletParts(ctx, name, rows)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	return c.forEachWatched(ctx, t, pieces, report, func(ctx context.Context, s rpc.TabletServer, l location) error {
		objects, err := s.Verify(ctx, l.tablet)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, o := range objects {
			if o.Error != "" {
				damaged(tablet.ObjectDamage{Table: t.Schema().Name, Tablet: l.tablet, Rows: l.rows, Object: o.Object, Err: errors.New(o.Error)})
			}
		}
		return nil
	})
}

// forEachWatched is forEachPart for work that servers tell the progress of. It calls report
// about once a second with estimates of how many bytes, of how many, are done.
func (c *Client) forEachWatched(ctx context.Context, t *catalog.Table, pieces []tabletPart, report func(done, total int64), do func(context.Context, rpc.TabletServer, location) error) error {
	details, err := c.details(ctx, t.Schema().ID)
	if err != nil {
		return err
	}
	sizes := make(map[metadata.TabletID]int64, len(details))
	for id, d := range details {
		sizes[id] = d.Bytes
	}
	var total int64
	for _, p := range pieces {
		total += sizes[p.row.Tablet]
	}
	report(0, total)
	var mu sync.Mutex
	var before int64
	running := map[metadata.TabletID]bool{}
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		for pause := time.Second; ; {
			select {
			case <-time.After(pause):
			case <-watching.Done():
				return
			}
			start := time.Now()
			now, err := c.details(watching, t.Schema().ID)
			pause = max(time.Second, 20*time.Since(start))
			if err != nil {
				continue
			}
			mu.Lock()
			done := before
			for id := range running {
				if d := now[id]; d != nil && d.Total > 0 {
					done += int64(float64(d.Done) / float64(d.Total) * float64(sizes[id]))
				}
			}
			mu.Unlock()
			report(min(done, total), total)
		}
	})
	err = c.forEachPart(ctx, t, pieces, func(ctx context.Context, s rpc.TabletServer, l location) error {
		mu.Lock()
		running[l.tablet] = true
		mu.Unlock()
		err := do(ctx, s, l)
		mu.Lock()
		defer mu.Unlock()
		delete(running, l.tablet)
		if err == nil {
			before += sizes[l.tablet]
		}
		return err
	})
	stop()
	watch.Wait()
	if err == nil {
		report(total, total)
	}
	return err
}

// DropDamaged forgets a damaged SSTable of a table, in every tablet that names
// it: see tablet.DropDamaged. It is FailedPrecondition for METADATA.
func (c *Client) DropDamaged(ctx context.Context, name, object string) (tablet.Loss, error) {
	var loss tablet.Loss
	t, all, err := c.tabletParts(ctx, name, row.All)
	if err != nil {
		return loss, err
	}
	if isMetadata(t) {
		return loss, fault.New(fault.FailedPrecondition, "what METADATA loses cannot be done without")
	}
	all = slices.DeleteFunc(all, func(p tabletPart) bool {
		return !slices.ContainsFunc(p.row.Files, func(f metadata.FileRef) bool { return f.Object == object })
	})
	var mu sync.Mutex
	found := false
	err = c.forEachPart(ctx, t, all, func(ctx context.Context, s rpc.TabletServer, l location) error {
		one, err := s.DropDamaged(ctx, l.tablet, object)
		if fault.KindOf(err) == fault.NotFound {
			return nil // forgotten meanwhile
		}
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			loss, found = tablet.Loss(*one), true
		}
		return err
	})
	if err == nil && !found {
		err = fault.New(fault.NotFound, "no tablet of %s has an SSTable %s", t.Schema().Name, object)
	}
	return loss, err
}
