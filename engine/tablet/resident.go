package tablet

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/trestledb/trestle/engine/mutex"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/sstable"
)

// The SSTables of locality groups that are to be in memory are loaded whole, as
// they are on disk, as far as Env.InMemoryBytes goes. Those beyond it are read
// like all others. Loading is background work: Compact begins with it.

// open opens an SSTable for reading, which is what the cache does whenever it has
// closed it.
func (e *Env) open(ctx context.Context, name string) (sstable.Readable, error) {
	e.objects.mu.Lock()
	o := e.objects.m[name]
	e.objects.mu.Unlock()
	if o == nil {
		return e.openStored(ctx, name)
	}
	f := &objectFile{env: e, o: o}
	if b := o.resident.Load(); b != nil {
		f.size = int64(len(*b))
		return f, nil
	}
	r, err := f.storage(ctx)
	if err != nil {
		return nil, err
	}
	f.size = r.Size()
	return f, nil
}

func (e *Env) openStored(ctx context.Context, name string) (sstable.Readable, error) {
	r, err := e.Objects.Open(ctx, name)
	if err != nil {
		return nil, missingIsCorrupt(name, err)
	}
	return r, nil
}

// An objectFile reads an SSTable from memory while it is there, and else from
// storage, where it is opened when it is first needed.
type objectFile struct {
	env  *Env
	o    *object
	size int64

	opening mutex.Mutex
	stored  atomic.Pointer[sstable.Readable]
}

func (f *objectFile) storage(ctx context.Context) (sstable.Readable, error) {
	if r := f.stored.Load(); r != nil {
		return *r, nil
	}
	f.opening.Lock()
	defer f.opening.Unlock()
	if r := f.stored.Load(); r != nil {
		return *r, nil
	}
	r, err := f.env.openStored(ctx, f.o.name)
	if err != nil {
		return nil, err
	}
	f.stored.Store(&r)
	return r, nil
}

// ReadAt implements sstable.Readable.
func (f *objectFile) ReadAt(ctx context.Context, p []byte, off int64) error {
	if b := f.o.resident.Load(); b != nil {
		if off < 0 || off+int64(len(p)) > int64(len(*b)) {
			return fmt.Errorf("%d bytes at %d of %d", len(p), off, len(*b))
		}
		copy(p, (*b)[off:])
		return nil
	}
	r, err := f.storage(ctx)
	if err != nil {
		return err
	}
	f.env.Stats.ReadBytes.Add(int64(len(p)))
	return r.ReadAt(ctx, p, off)
}

// Size implements sstable.Readable.
func (f *objectFile) Size() int64 { return f.size }

// Close implements sstable.Readable.
func (f *objectFile) Close() error {
	if r := f.stored.Load(); r != nil {
		return (*r).Close()
	}
	return nil
}

// settleResidents loads the SSTables that are to be in memory and are not, and
// lets go of those that need not be any more.
func (t *Tablet) settleResidents(ctx context.Context, v *version) error {
	l := t.layout()
	over := 0
	for _, u := range v.runs {
		in := u.layout == l.schema.Layout && l.group(u.group).InMemory
		for _, f := range u.files {
			switch loaded := f.resident.Load() != nil; {
			case in && !loaded && t.env.damaged(f.name):
				// What of it can be read is read from storage.
			case in && !loaded:
				ok, err := t.env.makeResident(ctx, f, v.row.Table)
				if err != nil {
					return t.readError(fmt.Errorf("load SSTable %s into memory: %w", f.name, err))
				}
				if !ok {
					over++
				}
			case !in && loaded:
				t.env.dropResident(f.object, v.row.Table)
			}
		}
	}
	if over > 0 && !t.jobs.overMemory {
		t.env.Log.Warn("no room for all SSTables that are to be in memory; the others are read from storage", "tablet", t.Name(),
			"sstables", over, "limit_bytes", t.env.InMemoryBytes)
	}
	t.jobs.overMemory = over > 0
	return nil
}

// makeResident loads f into memory for a table. It returns false if there is no
// room.
func (e *Env) makeResident(ctx context.Context, f file, table uint64) (bool, error) {
	e.objects.mu.Lock()
	if f.loading || f.resident.Load() != nil {
		e.objects.mu.Unlock()
		return true, nil // another tablet does it
	}
	if e.objects.resident+f.ref.Size > e.InMemoryBytes {
		e.objects.mu.Unlock()
		return false, nil
	}
	e.objects.resident += f.ref.Size
	f.loading = true
	e.objects.mu.Unlock()
	b, err := e.readWhole(ctx, f.name)
	e.objects.mu.Lock()
	defer e.objects.mu.Unlock()
	f.loading = false
	e.objects.resident -= f.ref.Size
	if err == nil {
		e.objects.resident += int64(len(b))
		f.table = table
		f.resident.Store(&b)
	}
	return true, err
}

func (e *Env) readWhole(ctx context.Context, name string) ([]byte, error) {
	r, err := e.openStored(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b := make([]byte, r.Size())
	e.Stats.ReadBytes.Add(int64(len(b)))
	return b, r.ReadAt(ctx, b, 0)
}

// dropResident ends what makeResident began for a table. A table that was made
// from a backup shares SSTables, and may have other settings.
func (e *Env) dropResident(o *object, table uint64) {
	e.objects.mu.Lock()
	defer e.objects.mu.Unlock()
	if o.table == table {
		e.dropResidentLocked(o)
	}
}

func (e *Env) dropResidentLocked(o *object) {
	if b := o.resident.Swap(nil); b != nil {
		e.objects.resident -= int64(len(*b))
	}
}

// Resident returns the bytes of SSTables in memory.
func (e *Env) Resident() int64 {
	e.objects.mu.Lock()
	defer e.objects.mu.Unlock()
	return e.objects.resident
}

// verify reads an SSTable as it is stored, past caches, copies, memory and files
// that are open, and checks all checksums. If it is sound what reads met of it
// before is forgotten: it was a copy that was damaged, or it was brought back.
func (e *Env) verify(ctx context.Context, o *object) error {
	f, err := objectstore.OpenStored(ctx, e.Objects, o.name)
	if err != nil {
		return missingIsCorrupt(o.name, err)
	}
	r, err := sstable.Open(ctx, e.Cache, f, o.name)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.VerifyChecksums(ctx); err != nil {
		return err
	}
	if e.forgive(o.name) {
		objectstore.Distrust(e.Objects, o.name)
	}
	return nil
}

// A GroupState is what an operator wants to know of a locality group.
type GroupState struct {
	Bytes, Resident int64 // of SSTables; of those of them that are in memory
	Runs, Files     int
}

// GroupStates fills groups with the state of each locality group by id. What was written
// when other families were in the groups is apart, under earlier.
func (t *Tablet) GroupStates(groups map[uint16]GroupState) (earlier GroupState) {
	clear(groups)
	v := t.pin()
	if v == nil {
		return earlier
	}
	defer v.release()
	layout := t.schema().Layout
	for _, u := range v.runs {
		s := groups[u.group]
		if u.layout != layout {
			s = earlier
		}
		s.Runs++
		s.Files += len(u.files)
		for _, f := range u.files {
			s.Bytes += f.ref.Size
			if b := f.resident.Load(); b != nil {
				s.Resident += int64(len(*b))
			}
		}
		if u.layout != layout {
			earlier = s
		} else {
			groups[u.group] = s
		}
	}
	return earlier
}
