package tablet

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
)

// A Damage is an SSTable, or a change file, in which reads of a tablet met bytes that
// were not what was written.
type Damage struct {
	Tablet metadata.TabletID
	// Object is the file, "" if the error did not tell.
	Object string
	// Reads counts the reads that failed for it, compactions included, from First
	// to Last.
	Reads       int64
	First, Last time.Time
	// Err is what the last of them met.
	Err error
	// Failed says that it is no SSTable but the whole tablet that is refused, since
	// First, because work on it has panicked: see Tablet.Failure.
	Failed bool
}

// damages are those met since the start.
type damages struct {
	mu sync.Mutex
	m  map[damaged]*Damage
	// objects are the SSTables concerned. Compactions leave them where they are.
	objects map[string]bool
}

type damaged struct {
	tablet metadata.TabletID
	object string
	failed bool
}

// failed notes that t has failed with err.
func (e *Env) failed(t *Tablet, err error) {
	now := e.Now()
	e.damages.mu.Lock()
	defer e.damages.mu.Unlock()
	e.damages.put(damaged{tablet: t.id, failed: true}, &Damage{Tablet: t.id, First: now, Last: now, Err: err, Failed: true})
}

func (d *damages) put(at damaged, x *Damage) {
	if d.m == nil {
		d.m = map[damaged]*Damage{}
	}
	d.m[at] = x
}

// damage notes that a read of t failed with err, which is fault.Corruption.
func (e *Env) damage(t *Tablet, err error) {
	d := damaged{tablet: t.id}
	text := err.Error()
	// The error is one of many packages' and Pebble's own; what names the file
	// in all of them is the text.
	t.Row().Objects(func(object string) {
		if d.object == "" && strings.Contains(text, object) {
			d.object = object
		}
	})
	now := e.Now()
	e.damages.mu.Lock()
	defer e.damages.mu.Unlock()
	x := e.damages.m[d]
	if x == nil {
		x = &Damage{Tablet: t.id, Object: d.object, First: now}
		e.damages.put(d, x)
	}
	if d.object != "" {
		if e.damages.objects == nil {
			e.damages.objects = map[string]bool{}
		}
		if !e.damages.objects[d.object] {
			// Once: if the store has it no better, fetching it again is in vain.
			e.damages.objects[d.object] = true
			objectstore.Distrust(e.Objects, d.object)
		}
	}
	x.Reads++
	x.Last, x.Err = now, err
}

// Damage returns what reads have met since the start, by tablet and object.
func (e *Env) Damage() []Damage {
	e.damages.mu.Lock()
	defer e.damages.mu.Unlock()
	var out []Damage
	for _, d := range e.damages.m {
		out = append(out, *d)
	}
	slices.SortFunc(out, func(a, b Damage) int {
		return cmp.Or(cmp.Compare(a.Tablet, b.Tablet), cmp.Compare(a.Object, b.Object))
	})
	return out
}

// damaged tells whether a read found object damaged.
func (e *Env) damaged(object string) bool {
	e.damages.mu.Lock()
	defer e.damages.mu.Unlock()
	return e.damages.objects[object]
}

// forgive forgets what reads met of an object, and tells whether they did.
func (e *Env) forgive(object string) bool {
	e.damages.mu.Lock()
	defer e.damages.mu.Unlock()
	was := e.damages.objects[object]
	delete(e.damages.objects, object)
	maps.DeleteFunc(e.damages.m, func(d damaged, _ *Damage) bool { return d.object == object })
	return was
}

// quarantined tells whether a file of u is damaged. Such a run stays as it is:
// a compaction of it would fail. What deletes entries of it stays too, as
// compactions drop that only if nothing older is in a run that they leave out.
func (t *Tablet) quarantined(u *run) bool {
	return slices.ContainsFunc(u.files, func(f file) bool { return t.env.damaged(f.name) })
}

// Quarantined returns the SSTables that compactions leave out because they are
// damaged.
func (t *Tablet) Quarantined() []string {
	var out []string
	for _, f := range t.Row().Files {
		if t.env.damaged(f.Object) {
			out = append(out, f.Object)
		}
	}
	return out
}

// A Loss is what goes with an SSTable: what was written to the rows between the
// two, both included, and is in no other SSTable.
type Loss struct {
	First, Last []byte
	Entries     uint64
	Bytes       int64
}

// DropDamaged forgets a damaged SSTable. What only it held is lost; that may
// include deletions, so that older values show again. Changes keep no record of it:
// ReadChangedRows from before is Expired. It is NotFound if the tablet has no such
// SSTable, and FailedPrecondition if that is not damaged, or of a materialized view.
func (t *Tablet) DropDamaged(ctx context.Context, object string) (Loss, error) {
	// No compaction is rewriting it.
	defer t.quiesce()()
	t.change.Lock()
	defer t.change.Unlock()
	v := t.pin()
	if v == nil {
		return Loss{}, t.gone()
	}
	defer v.release()
	var found *file
	for _, u := range v.runs {
		for i := range u.files {
			if u.files[i].name == object {
				found = &u.files[i]
			}
		}
	}
	if found == nil {
		return Loss{}, fault.New(fault.NotFound, "%v has no SSTable %s", t.Name(), object)
	}
	err := t.env.verify(ctx, found.object)
	if err == nil {
		return Loss{}, fault.New(fault.FailedPrecondition, "SSTable %s is not damaged: it stays", object)
	}
	if err := t.readError(err); fault.KindOf(err) != fault.Corruption {
		return Loss{}, fmt.Errorf("verify SSTable %s: %w", object, err)
	}
	if s := t.schema().View; s != nil {
		// What it held cannot be told from what never was: the view would be wrong for good.
		return Loss{}, fault.New(fault.FailedPrecondition, "SSTable %s is of materialized view %s, which would not equal its query without it: delete the view and create it again, its source has all of it", object, s.Name)
	}
	loss := Loss{Entries: found.ref.Entries, Bytes: found.ref.Size}
	var errs [2]error
	loss.First, errs[0] = cell.RowOf(nil, found.ref.Lo)
	loss.Last, errs[1] = cell.RowOf(nil, found.ref.Hi)
	if err := errors.Join(errs[:]...); err != nil {
		return Loss{}, fault.New(fault.Corruption, "bounds of SSTable %s: %w", object, err)
	}
	next := v.row.Clone()
	next.Files = slices.DeleteFunc(next.Files, func(f metadata.FileRef) bool { return f.Object == object })
	t.trimRanges(next, v.mems)
	// A reader of changes that comes to the stamp sees the row that has it.
	t.write.Lock()
	if t.write.closed {
		t.write.Unlock()
		return Loss{}, t.gone()
	}
	if s := t.streamNowLocked(); s != nil {
		s.Lost = t.instantLocked()
		next.Stream, next.MaxSeq = s, max(next.MaxSeq, s.Lost)
		defer func() {
			t.write.Lock()
			defer t.write.Unlock()
			t.passLocked()
		}()
	}
	t.write.Unlock()
	if err := t.env.Meta.CAS(ctx, next); err != nil {
		return Loss{}, t.lost(nil, err)
	}
	t.install(func(old *version) *version { return newVersion(t.env, next, old.mems) })
	t.env.Log.Warn("dropped a damaged SSTable", "tablet", t.Name(), "object", object, "bytes", loss.Bytes)
	return loss, nil
}

// missingIsCorrupt makes an error of opening an SSTable that is not there what
// it is to a reader of its rows: data that was stored is lost.
func missingIsCorrupt(name string, err error) error {
	if errors.Is(err, fault.NotFound) {
		return fault.New(fault.Corruption, "SSTable %s is missing", name)
	}
	return err
}

// A TableDamage is an SSTable in which reads have met bytes that are not what was
// written. Rows in the bytes concerned are refused with fault.Corruption, all
// others are served. Or it is a tablet that has failed: all its rows are refused.
type TableDamage struct {
	Table string    // full name
	Rows  row.Range // of the tablet
	Damage
}

// DamageOf returns what was met of SSTables that tablets have, by tablet and
// object. name returns the full name of a tablet's table.
func DamageOf(met []Damage, tablets []*Tablet, name func(*Tablet) string) []TableDamage {
	var out []TableDamage
	for _, d := range met {
		// A tablet that was split left its files to its children.
		for _, tt := range tablets {
			r := tt.Row()
			named := false
			r.Objects(func(object string) { named = named || object == d.Object })
			if d.Failed && tt.Failure() == nil || d.Object == "" && tt.ID() != d.Tablet || d.Object != "" && !named {
				continue
			}
			one := TableDamage{Table: name(tt), Rows: tt.Bounds(), Damage: d}
			one.Tablet = tt.ID()
			at := slices.IndexFunc(out, func(o TableDamage) bool {
				return o.Tablet == one.Tablet && o.Object == one.Object && o.Failed == one.Failed
			})
			if at < 0 {
				out = append(out, one)
			} else if tt.ID() == d.Tablet {
				one.Reads += out[at].Reads
				out[at] = one
			} else {
				out[at].Reads += one.Reads
			}
		}
	}
	slices.SortFunc(out, func(a, b TableDamage) int {
		return cmp.Or(strings.Compare(a.Table, b.Table), bytes.Compare(a.Rows.Start, b.Rows.Start), strings.Compare(a.Object, b.Object))
	})
	return out
}
