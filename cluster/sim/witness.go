package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
)

// fenceBytes is the size of a fence of a commit log. Segments are larger.
const fenceBytes = 64

// A Witness sees what reaches the store and the METADATA tablets, and keeps what
// must not have happened. Options.Witness makes a cluster have one.
type Witness struct {
	mu      sync.Mutex
	rows    map[string]map[uint64]*metadata.Row // by key and version; nil: deleted or retired
	logs    map[string]*witnessedLog            // as the names of their objects begin
	errs    []error
	changes int // of METADATA rows
}

// NewWitness returns a Witness that has seen nothing.
func NewWitness() *Witness {
	return &Witness{rows: map[string]map[uint64]*metadata.Row{}, logs: map[string]*witnessedLog{}}
}

func (w *Witness) note(format string, args ...any) {
	w.errs = append(w.errs, fmt.Errorf(format, args...))
}

// A witnessedLog is what was put of a commit log. It has ended when its first object that
// was never a segment is a fence. A fence put far ahead of a writer that goes on ends the
// log only when the writer gets there.
type witnessedLog struct {
	next  uint64          // the first that is not known to be a segment
	ahead map[uint64]bool // from next on, whether it is a fence
}

func (w *Witness) put(log string, index uint64, fence bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.logs[log]
	if l == nil {
		l = &witnessedLog{next: 1, ahead: map[uint64]bool{}}
		w.logs[log] = l
	}
	if index < l.next {
		return // it came late, and was trimmed before
	}
	l.ahead[index] = fence
	for fence, ok := l.ahead[l.next]; ok && !fence; fence, ok = l.ahead[l.next] {
		delete(l.ahead, l.next)
		l.next++
	}
}

// fenced tells whether an incarnation's commit log of users' tablets has ended.
func (w *Witness) fenced(log fmt.Stringer) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.logs[log.String()]
	return l != nil && l.ahead[l.next]
}

func (w *Witness) acknowledged(log fmt.Stringer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("I1: a write was acknowledged that came when commit log %v had ended", log)
}

// changed notes a change of a METADATA row.
func (w *Witness) changed(key string, version uint64, r *metadata.Row) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changes++
	of := w.rows[key]
	if of == nil {
		of = map[uint64]*metadata.Row{}
		w.rows[key] = of
	}
	if _, ok := of[version]; ok {
		w.note("I6: METADATA row %q was changed twice to version %d", key, version)
	}
	of[version] = r
	for _, near := range []struct{ old, next *metadata.Row }{{of[version-1], r}, {r, of[version+1]}} {
		old, next := near.old, near.next
		if old == nil || next == nil || old.Tablet != next.Tablet {
			continue
		}
		if next.MaxSeq < old.MaxSeq || next.FlushedSeq < old.FlushedSeq || next.NextRun < old.NextRun {
			w.note("I6: tablet %v goes back from %d, %d, %d to %d, %d, %d", r.Tablet, old.MaxSeq, old.FlushedSeq, old.NextRun, next.MaxSeq, next.FlushedSeq, next.NextRun)
		}
		a, b := old.Assignment, next.Assignment
		if a == nil || b == nil {
			continue
		}
		if b.Epoch < a.Epoch || b.Incarnation != 0 && a.Incarnation != b.Incarnation && b.Epoch == a.Epoch {
			w.note("I6: tablet %v changes from epoch %d of server %d to %d of %d", r.Tablet, a.Epoch, a.Incarnation, b.Epoch, b.Incarnation)
		}
		if b.Master < a.Master {
			w.note("I12: tablet %v was changed by master %d after %d", r.Tablet, b.Master, a.Master)
		}
	}
}

// Changes counts those of METADATA rows.
func (w *Witness) Changes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changes
}

// Check returns what must not have happened.
func (w *Witness) Check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.errs...)
}

// A witnessedStore is the store as it is where it stands.
type witnessedStore struct {
	objectstore.Store
	w *Witness
}

func (s *witnessedStore) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	err := s.Store.PutIfAbsent(ctx, name, data)
	if log, number, ok := strings.Cut(name, "/"); ok && err == nil && log != copiesPart {
		index, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return fmt.Errorf("object %s: %w", name, err)
		}
		s.w.put(log, index, len(data) == fenceBytes)
	}
	return err
}

func (s *witnessedStore) Delete(ctx context.Context, name string) error {
	if strings.Contains(name, "/") {
		if data, err := s.Get(ctx, name); err == nil && len(data) == fenceBytes {
			s.w.mu.Lock()
			s.w.note("I8: fence %s is deleted", name)
			s.w.mu.Unlock()
		}
	}
	return s.Store.Delete(ctx, name)
}

// A witnessedServer is a tablet server as it is where it runs.
type witnessedServer struct {
	rpc.TabletServer
	w   *Witness
	log fmt.Stringer
}

func (s *witnessedServer) MutateRow(ctx context.Context, at rpc.Target, e *row.Entry) error {
	late := s.w.fenced(s.log)
	err := s.TabletServer.MutateRow(ctx, at, e)
	if late && err == nil {
		s.w.acknowledged(s.log)
	}
	return err
}

func (s *witnessedServer) ReadModifyWriteRow(ctx context.Context, at rpc.Target, key []byte, rules []row.Rule) ([]row.Cell, error) {
	late := s.w.fenced(s.log)
	cells, err := s.TabletServer.ReadModifyWriteRow(ctx, at, key, rules)
	if late && err == nil {
		s.w.acknowledged(s.log)
	}
	return cells, err
}

func (s *witnessedServer) CheckAndMutateRow(ctx context.Context, at rpc.Target, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (bool, error) {
	matched, err := s.TabletServer.CheckAndMutateRow(ctx, at, key, predicate, then, otherwise)
	muts := then
	if !matched {
		muts = otherwise
	}
	if err != nil || len(muts) == 0 {
		return matched, err
	}
	// A METADATA row has its version beside it: metastore's two columns.
	var r *metadata.Row
	for i := range muts {
		m := &muts[i]
		if m.Op != row.SetCell || m.Family != "m" {
			continue
		}
		switch {
		case bytes.Equal(m.Qualifier, []byte("r")):
			if r, err = metadata.Unmarshal(m.Value); err != nil {
				return matched, err
			}
			s.w.changed(string(key), r.Version, r)
		case bytes.Equal(m.Qualifier, []byte("v")) && r == nil && len(m.Value) == 8: // retired
			s.w.changed(string(key), binary.BigEndian.Uint64(m.Value), nil)
		}
	}
	return matched, nil
}
