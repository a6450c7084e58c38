package tablet

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/merge"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/sstable"
)

// An output writes the SSTables of one run, or of one in each locality group,
// in key order. It begins a new one where a row begins and the last is long
// enough.
type output struct {
	t      *Tablet
	layout *layout
	run    uint64
	gc     merge.GC
	// groups are those of layout, or a single one that takes everything.
	groups []groupOutput
	files  []metadata.FileRef
	// cleared is the sequence number of the newest range tombstone that the
	// output has been held against.
	cleared cell.Seq
	// instant is the newest input's.
	instant metadata.Instant
	// pace holds it back while there are requests.
	pace *pacer
	// progress is told how far it has come, unless it is nil.
	progress *progress
	// carried names the files that it did not write, begun all others.
	carried map[string]bool
	begun   []string
	// recorded is the change file of a flush, and removed that of what was collected;
	// nil of a table without a stream.
	recorded *changeFile
	removed  *collection
	// index is what a flush has put change files into, nil if it has not.
	index *changeIndex
}

type groupOutput struct {
	group schema.Group
	// rows says that row markers are written: something older may be in the group.
	rows bool
	w    *tableWriter
	last []byte // row prefix of the last entry written
}

func (t *Tablet) newOutput(v *version, l *layout, run uint64, instant metadata.Instant) *output {
	o := &output{t: t, layout: l, run: run, instant: instant, carried: map[string]bool{}}
	o.gc = merge.GC{Families: map[cell.FamilyID]merge.Rule{}, NextFamily: l.schema.NextFamily, Now: t.env.now().UnixMicro(), AsOf: instant.Time}
	for _, f := range l.schema.Families {
		rule := merge.Rule{GCRule: f.GC, New: f.GCVersion > instant.Schema}
		if _, shared := o.gc.Families[f.ID]; shared {
			rule.GCRule = nil // whose cells they are is not known: see schema.Table.Unsound
		}
		o.gc.Families[f.ID] = rule
	}
	o.gc.Ranges = v.rangeDel
	for _, d := range v.row.RangeDel {
		o.cleared = max(o.cleared, d.Seq)
	}
	o.gc.Rows = t.bounds
	o.removed = t.newCollection()
	return o
}

// byFamily makes o write every entry to the group of its family. What concerns
// a whole row goes to each group, so that none needs to know of another. Reads
// of one family look into its group alone, and a group's compactions may drop
// what hides nothing older in the group.
func (o *output) byFamily(v *version) {
	o.groups = make([]groupOutput, len(o.layout.groups))
	for i, g := range o.layout.groups {
		o.groups[i] = groupOutput{group: g, rows: o.layout.mayHold(v, g.ID)}
	}
}

// take is add that closes it.
func (o *output) take(ctx context.Context, it cell.Iterator, complete bool) (err error) {
	defer func() { err = errors.Join(err, it.Close()) }()
	return o.add(ctx, it, complete)
}

// add writes what the garbage collection leaves of it. complete says that no
// entry outside of it is older than one in it.
func (o *output) add(ctx context.Context, it cell.Iterator, complete bool) error {
	o.gc.Complete = complete
	n, done := 0, int64(0)
	for ok := it.First(); ok; ok = it.Next() {
		// Entries in blocks of 32 KiB, so that huge values are not a long time.
		if n++; n == 1024 || done >= 32<<10 {
			if err := ctx.Err(); err != nil {
				return err
			}
			o.progress.advance(done)
			if err := o.pace.worked(ctx, done); err != nil {
				return err
			}
			n, done = 0, 0
		}
		e := it.Entry()
		done += int64(len(e.Key) + len(e.Value))
		removed, uncovered := o.gc.Collected+o.gc.Ended, o.gc.Uncovered
		action, err := o.gc.Decide(e)
		if err != nil {
			return o.t.fatal(err)
		}
		// Of a row in which cells come to light views are told that it has changed. Clients are
		// not: they were told of the cells when those were written.
		if o.removed != nil && (o.gc.Collected+o.gc.Ended > removed || o.removed.rows && o.gc.Uncovered > uncovered) {
			if err := o.removed.take(ctx, e); err != nil {
				return err
			}
		}
		if action == merge.Drop {
			continue
		}
		if action == merge.Bury {
			e = &cell.Entry{Key: e.Key, Seq: e.Seq, Kind: cell.Delete}
		}
		if err := o.write(ctx, e); err != nil {
			return err
		}
	}
	return o.t.readError(it.Error())
}

// write writes an entry to the group, or the groups, where it belongs.
func (o *output) write(ctx context.Context, e *cell.Entry) error {
	if len(o.groups) == 1 {
		return o.writeTo(ctx, &o.groups[0], e)
	}
	if s := e.Key[len(o.gc.Prefix()):]; len(s) >= 2 {
		f := cell.FamilyID(uint16(s[0])<<8 | uint16(s[1]))
		return o.writeTo(ctx, &o.groups[o.layout.slot(f)], e)
	}
	for i := range o.groups {
		if g := &o.groups[i]; g.rows {
			if err := o.writeTo(ctx, g, e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *output) writeTo(ctx context.Context, g *groupOutput, e *cell.Entry) error {
	row := o.gc.Prefix()
	if g.w != nil && int64(g.w.EstimatedSize()) >= o.t.env.Options.FileBytes && !bytes.Equal(row, g.last) {
		if err := o.cutGroup(g); err != nil {
			return err
		}
	}
	if g.w == nil {
		var err error
		if g.w, err = o.newTable(ctx, &g.group); err != nil {
			return err
		}
	}
	g.last = append(g.last[:0], row...)
	return g.w.Add(e)
}

// cut finishes the SSTables that are being written.
func (o *output) cut() error {
	for i := range o.groups {
		if err := o.cutGroup(&o.groups[i]); err != nil {
			return err
		}
	}
	return nil
}

func (o *output) cutGroup(g *groupOutput) error {
	if g.w == nil {
		return nil
	}
	w := g.w
	g.w = nil
	ref, err := w.finish(o.run)
	if err == nil {
		ref.Group, ref.Layout, ref.Schema = g.group.ID, o.layout.schema.Layout, o.layout.schema.Version
		ref.Cleared = max(ref.Cleared, o.cleared)
		ref.Instant = o.instant
		o.files = append(o.files, ref)
	}
	return err
}

// carry takes over a file that another run had.
func (o *output) carry(f *metadata.FileRef) error {
	if err := o.cut(); err != nil {
		return err
	}
	ref := *f
	ref.Run, ref.Instant = o.run, o.instant
	o.carried[ref.Object] = true
	o.files = append(o.files, ref)
	return nil
}

// abort gives up what work on the tablet has written when it failed, which may be
// nothing.
func (t *Tablet) abort(out *output) {
	if out == nil {
		return
	}
	// It is not known in which state a panic has left it.
	_ = t.guard("abort", func() error {
		out.abort()
		return nil
	})
}

// abort gives up. Files that were carried over belong to their old runs still.
func (o *output) abort() {
	for i := range o.groups {
		if g := &o.groups[i]; g.w != nil {
			g.w.Abort()
			g.w = nil
		}
	}
	for _, f := range o.files {
		if !o.carried[f.Object] {
			o.t.env.Remove(f.Object)
		}
	}
	o.files = nil
	o.recorded.abort()
	o.removed.abort()
	o.index.abort()
	o.t.env.decided(o.begun)
}

func families(s *schema.Table) map[cell.FamilyID]*schema.GCRule {
	m := make(map[cell.FamilyID]*schema.GCRule, len(s.Families))
	for _, f := range s.Families {
		m[f.ID] = f.GC
	}
	return m
}

// A tableWriter writes one SSTable object.
type tableWriter struct {
	*sstable.Writer
	name string
	id   uint64
}

func (o *output) newTable(ctx context.Context, g *schema.Group) (*tableWriter, error) {
	e := o.t.env
	opts, err := e.tableOptions(g)
	if err != nil {
		return nil, err
	}
	id := e.NewID()
	name := fmt.Sprintf("%016x.sst", id)
	e.begin(name)
	o.begun = append(o.begun, name)
	object, err := e.Objects.Create(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("create SSTable %s: %w", name, err)
	}
	w, err := sstable.NewWriter(object, opts)
	if err != nil {
		object.Abort()
		return nil, fmt.Errorf("create SSTable %s: %w", name, err)
	}
	return &tableWriter{w, name, id}, nil
}

func (w *tableWriter) finish(run uint64) (metadata.FileRef, error) {
	info, err := w.Finish()
	if err != nil {
		return metadata.FileRef{}, fmt.Errorf("write SSTable %s: %w", w.name, err)
	}
	return metadata.FileRef{Object: w.name, ID: w.id, Run: run, Info: info}, nil
}

// named says that r is the METADATA row now. Of the changes that were written it names none if
// the stream has come to another life meanwhile.
func (o *output) named(r *metadata.Row) {
	o.t.env.decided(o.begun)
	names := map[string]bool{}
	r.Objects(func(object string) { names[object] = true })
	if x := o.index; x != nil {
		if names[x.object] {
			for i := range x.files {
				names[x.files[i].Object] = true
			}
			x.named()
		} else {
			x.abort()
		}
	}
	o.recorded.named(names)
	if o.removed != nil {
		for i := range o.removed.parts {
			o.removed.parts[i].named(names)
		}
	}
}
