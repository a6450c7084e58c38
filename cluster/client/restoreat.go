package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
)

const (
	// restoreBytes and restoreChanges bound what a tablet's changes are written back by at
	// once.
	restoreBytes   = 1 << 20
	restoreChanges = 10_000
	// restoreRetry is how long a write of it is tried again.
	restoreRetry = 5 * time.Minute
	// stagedRenewal is how often a table that is being restored gives a sign of life: often
	// enough for the master's MakeLimit.
	stagedRenewal = time.Minute
	// stagedLife is that of the backup from which the result is made.
	stagedLife = time.Hour
)

// RestoreTableAt implements backend.TimeRestorer. It makes a staged table of the backup
// (see catalog.Staged), writes the changes up to the time back to it, as a client would, and
// restores a backup of that under the name. So nobody sees the table before it is what it
// was, and a restore that ends halfway leaves nothing. Its cost is that of writing the
// changes once more, durably.
func (c *Client) RestoreTableAt(ctx context.Context, from, name string, at time.Time, change func(*schema.Table) error) (*schema.Table, error) {
	b, err := c.backup(ctx, from)
	if err != nil {
		return nil, err
	}
	rows, err := c.backupRows(ctx, b)
	if err != nil {
		return nil, err
	}
	r := newRestoreAt(c, b, rows, at)
	if err := r.check(ctx); err != nil {
		return nil, err
	}
	n, _, err := catalog.ReadName(ctx, c.o.Lock, name)
	if err == nil {
		err = checkNameFree(n, name)
	}
	if err != nil {
		return nil, err
	}
	if err := r.stage(ctx); err != nil {
		return nil, err
	}
	defer r.unstage(ctx)
	done, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	renewing := make(chan struct{})
	go func() {
		defer close(renewing)
		r.renew(done, cancel)
	}()
	defer func() { cancel(nil); <-renewing }()
	t, err := r.finish(done, name, change)
	if cause := context.Cause(done); err != nil && cause != nil {
		err = cause
	}
	return t, err
}

// RestorableAt implements backend.TimeRestorer. That changes are no longer kept shows when
// they are read.
func (c *Client) RestorableAt(ctx context.Context, from string, at time.Time) error {
	b, err := c.backup(ctx, from)
	if err != nil {
		return err
	}
	rows, err := c.backupRows(ctx, b)
	if err != nil {
		return err
	}
	return newRestoreAt(c, b, rows, at).check(ctx)
}

func newRestoreAt(c *Client, b *catalog.Backup, rows []*metadata.Row, at time.Time) *restoreAt {
	return &restoreAt{c: c, b: b, rows: rows, at: at, until: stamp.At(at) + stamp.Stride - 1}
}

// A restoreAt is a call of RestoreTableAt.
type restoreAt struct {
	c     *Client
	b     *catalog.Backup
	rows  []*metadata.Row // of the backup
	at    time.Time
	until cell.Seq // the last stamp that counts

	source *schema.Table
	staged *schema.Table
	rules  map[cell.FamilyID]*schema.GCRule // of the staged table's families; it has none itself
	names  map[cell.FamilyID]string
}

// check says what the backup cannot be brought to, and what it can.
func (r *restoreAt) check(ctx context.Context) error {
	whole := fmt.Sprintf("Backup %s can be restored as it is, without a time", r.b.Name)
	if now := r.c.o.Now(); r.at.After(now) {
		return fault.InvalidField("time", "%s is not over yet: it is %s", format(r.at), format(now))
	}
	var newest cell.Seq
	for _, m := range r.rows {
		newest = max(newest, m.MaxSeq)
	}
	if r.until < newest {
		return fault.New(fault.OutOfRange, "Backup %s has what was committed up to %s, and cannot be brought to %s: use one that was made before. %s", r.b.Name, format(stamp.Time(newest)), format(r.at), whole)
	}
	n, _, err := catalog.ReadName(ctx, r.c.o.Lock, r.b.Table.Name)
	if err != nil {
		return err
	}
	r.source = n.Live()
	// What is kept for views only says which rows have changed.
	life := func(t *schema.Table) (life uint64, since time.Time) {
		if s := t.ChangeStream(); s != nil {
			return s.ForClients()
		}
		return 0, time.Time{}
	}
	then, _ := life(r.b.Table)
	switch now := r.source; {
	case now == nil || now.ID != r.b.Table.ID:
		return fault.New(fault.FailedPrecondition, "Table %s, of which backup %s was made, is no more, nor are its changes. %s", r.b.Table.Name, r.b.Name, whole)
	case now.ChangeStream() == nil:
		return fault.New(fault.FailedPrecondition, "Change streams are not enabled on table %s: no change since backup %s is kept. %s", now.Name, r.b.Name, whole)
	default:
		is, since := life(now)
		if is == then {
			return nil
		}
		return fault.New(fault.FailedPrecondition, "The change stream of table %s was enabled at %s, after backup %s was made: later backups can be brought to a time. %s",
			now.Name, format(since), r.b.Name, whole)
	}
}

func format(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// stage makes the staged table: what the backup holds, with the families that came since,
// and without rules of garbage collection. What was collected is among the changes, and
// nothing may be collected before a change that uncovers it.
func (r *restoreAt) stage(ctx context.Context) error {
	newID, err := r.c.newIDs(ctx)
	if err != nil {
		return err
	}
	t := r.b.Table.Clone()
	t.ForgetViews()
	t.ID = newID()
	t.Name, t.CreateTime, t.DeleteTime, t.Stream, t.DeletionProtection = catalog.StagedName(t.ID), r.c.o.Now(), time.Time{}, nil, false
	t.NextFamily, t.Version = max(t.NextFamily, r.source.NextFamily), r.b.Table.Version+1
	r.rules, r.names = map[cell.FamilyID]*schema.GCRule{}, map[cell.FamilyID]string{}
	for _, name := range t.FamilyNames() {
		r.names[t.Families[name].ID] = name
	}
	for _, name := range r.source.FamilyNames() {
		f := r.source.Families[name]
		if _, taken := t.Families[name]; !taken && r.names[f.ID] == "" {
			f.Group = 0 // the backup has no cells of it, and may not have its group
			t.Families[name], r.names[f.ID] = f, name
		}
	}
	for name, f := range t.Families {
		r.rules[f.ID] = f.GC
		f.GC = nil
		t.Families[name] = f
	}
	if err := t.CheckRestored(r.b.Table); err != nil {
		return err
	}
	t.NoteRules(r.b.Table)
	r.staged, err = r.c.restoreRows(ctx, r.b, t, newID)
	return err
}

// unstage lets go of the staged table and of its backup. What it leaves, the master removes.
func (r *restoreAt) unstage(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	_ = r.c.DeleteBackup(ctx, r.staged.Name)
	_ = r.c.writeTables(ctx, r.staged.Name, func(catalog.Name) (catalog.Name, error) { return catalog.Name{}, nil }, false)
}

// renew gives signs of life until ctx is done. It cancels the restore when the master has
// given up the staged table.
func (r *restoreAt) renew(ctx context.Context, cancel func(error)) {
	tick := time.NewTicker(stagedRenewal)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_, err := r.c.changeLive(ctx, r.staged.Name, func(*schema.Table) error { return nil })
			if errors.Is(err, fault.NotFound) {
				cancel(fault.New(fault.Unavailable, "the restore of backup %s took too long without a sign of life", r.b.Name))
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// finish writes the changes back, and makes the table of what comes of that.
func (r *restoreAt) finish(ctx context.Context, name string, change func(*schema.Table) error) (*schema.Table, error) {
	if err := inParallel(ctx, r.rows, r.tablet); err != nil {
		return nil, err
	}
	b := &schema.Backup{Name: r.staged.Name, ExpireTime: r.c.o.Now().Add(stagedLife)}
	if _, err := r.c.CreateBackup(ctx, r.staged.Name, b); err != nil {
		return nil, err
	}
	return r.c.RestoreTable(ctx, b.Name, name, func(t *schema.Table) error {
		for family, f := range t.Families {
			f.GC = r.rules[f.ID]
			t.Families[family] = f
		}
		return change(t)
	})
}

// tablet writes back what was changed in the rows of a tablet since the backup was made.
func (r *restoreAt) tablet(ctx context.Context, m *metadata.Row) error {
	// Stamps are above that of the tablet, and above when the stream was enabled, which
	// every server knew when the backup was made.
	_, since := r.b.Table.Stream.ForClients()
	from := max(m.MaxSeq, stamp.At(since)-stamp.Stride)
	if from >= r.until {
		return nil
	}
	type stretch struct {
		within row.Range
		of     *row.Range
		at     changes.Position
	}
	// A partition that ended is followed by those that it became.
	todo := []stretch{{within: row.Range{Start: m.Start, End: m.End}, at: changes.Position{Through: from}}}
	for len(todo) > 0 {
		p := todo[0]
		todo = todo[1:]
		w := &restoreWriter{r: r, ctx: ctx}
		closed, err := r.c.ReadChanges(ctx, &changes.Request{Table: r.source.Name, Life: r.source.Stream.Life, Within: p.within, Partition: p.of, From: p.at, Until: r.until, Every: 100 * time.Millisecond}, w)
		if err == nil {
			err = w.Flush()
		}
		if err != nil {
			return r.explain(err)
		}
		if closed == nil || closed.At.Through >= r.until {
			continue
		}
		for _, of := range closed.Partitions {
			if within := of.Intersect(p.within); !within.Empty() {
				todo = append(todo, stretch{within: within, of: &of, at: closed.At})
			}
		}
	}
	return nil
}

// explain says of changes that are no longer kept which backups go on from what is kept.
func (r *restoreAt) explain(err error) error {
	var e *fault.Error
	if !errors.As(err, &e) || e.Reason != changes.ExpiredReason {
		return err
	}
	return fault.New(fault.OutOfRange, "Backup %s is of %s, and changes of table %s are kept from %s on: a backup that was made after that can be brought to a time. Backup %s can be restored as it is, without a time",
		r.b.Name, format(r.b.EndTime), r.source.Name, e.Metadata[changes.EarliestKey], r.b.Name)
}

// A restoreWriter writes changes back. It is a changes.Writer.
type restoreWriter struct {
	r       *restoreAt
	ctx     context.Context
	entries []row.Entry // of different rows
	at      map[string]int
	bytes   int
	n       int
}

// Record implements changes.Writer.
func (w *restoreWriter) Record(rec *changes.Record, _ changes.Position) (bool, error) {
	i, ok := w.at[string(rec.Key)]
	if !ok {
		if w.at == nil {
			w.at = map[string]int{}
		}
		i = len(w.entries)
		w.at[string(rec.Key)] = i
		w.entries = append(w.entries, row.Entry{Key: bytes.Clone(rec.Key)})
		w.bytes += len(rec.Key)
	}
	e := &w.entries[i]
	for j := range rec.Changes {
		m, err := w.r.mutation(&rec.Changes[j])
		switch {
		case errors.Is(err, errFamilyGone):
			return false, fault.New(fault.FailedPrecondition, "A family of table %s that was added after backup %s was made, and is no more or has the name of one that the backup has, was written at %s. The backup can be brought to a time before that, and later backups to later times",
				w.r.source.Name, w.r.b.Name, format(stamp.Time(rec.Stamp)))
		case err != nil:
			return false, fault.New(fault.Corruption, "change of row %q at %s: %w", rec.Key, format(stamp.Time(rec.Stamp)), err)
		case m == nil:
			continue
		}
		if (m.Op == row.AddToCell || m.Op == row.MergeToCell) && len(e.Token.Token) == 0 {
			// Once, however often it is sent. The number is of no other entry of the table.
			e.Token.Token = fmt.Appendf(nil, "restore-%016x-%d", uint64(rec.Stamp), j)
		}
		e.Mutations = append(e.Mutations, *m)
		w.bytes += len(m.Qualifier) + len(m.Value) + len(m.Input.Bytes)
		w.n++
	}
	return w.bytes >= restoreBytes || w.n >= restoreChanges, nil
}

// errFamilyGone says that a change wrote to a family that came after the backup, and is no
// more or has the name of one that the backup has. It cannot be given back then, and without
// it the table would not be what it was.
var errFamilyGone = errors.New("the family of the change has no place in the restored table")

// mutation returns what makes a change once more, nil if nothing is restored of its family.
func (r *restoreAt) mutation(c *changes.Change) (*row.Mutation, error) {
	if c.Op == changes.DeleteRow {
		return &row.Mutation{Op: row.DeleteRow}, nil
	}
	name := r.names[c.Family]
	switch {
	case name != "":
	case uint32(c.Family) < r.b.Table.NextFamily, c.Op == changes.DeleteColumn, c.Op == changes.DeleteFamily:
		return nil, nil
	default:
		return nil, errFamilyGone
	}
	m := &row.Mutation{Family: name, Qualifier: bytes.Clone(c.Qualifier), Timestamp: c.Timestamp}
	switch c.Op {
	case changes.SetCell:
		m.Op, m.Value = row.SetCell, bytes.Clone(c.Value)
	case changes.DeleteColumn:
		if m.Op, m.Timestamp, m.Times = row.DeleteColumn, 0, c.Times; m.Times.Start == 0 {
			m.Times.Start = math.MinInt64
		}
		if m.Times.End == 0 {
			m.Times.End = math.MaxInt64
		}
	case changes.DeleteFamily:
		m.Op, m.Timestamp = row.DeleteFamily, 0
	case changes.AddToCell, changes.MergeToCell:
		if m.Op = row.AddToCell; c.Op == changes.MergeToCell {
			m.Op = row.MergeToCell
		}
		in, err := changes.ParseInput(bytes.Clone(c.Value))
		if err != nil {
			return nil, err
		}
		m.Input = in
	default:
		return nil, fmt.Errorf("operation %d is not known", c.Op)
	}
	return m, nil
}

// Flush implements changes.Writer. It returns when all is durable.
func (w *restoreWriter) Flush() error {
	todo := slices.DeleteFunc(w.entries, func(e row.Entry) bool { return len(e.Mutations) == 0 })
	end := time.Now().Add(restoreRetry)
	for attempt := 0; len(todo) > 0; attempt++ {
		failed := make([]error, len(todo))
		err := w.r.c.MutateRows(w.ctx, w.r.staged.Name, todo, func(i int, err error) { failed[i] = err })
		if err != nil {
			return err
		}
		var left []row.Entry
		for i, err := range failed {
			switch {
			case err == nil:
			case w.ctx.Err() != nil:
				return context.Cause(w.ctx)
			case !errors.Is(err, fault.Unavailable) || time.Now().After(end):
				return fmt.Errorf("write row %q back: %w", todo[i].Key, err)
			default:
				left = append(left, todo[i])
			}
		}
		if todo = left; len(todo) > 0 {
			if err := w.r.c.backoff(w.ctx, attempt); err != nil {
				return err
			}
		}
	}
	w.entries, w.bytes, w.n = nil, 0, 0
	clear(w.at)
	return nil
}

// Watermark implements changes.Writer.
func (w *restoreWriter) Watermark(changes.Position) error { return nil }
