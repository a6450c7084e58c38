package tablet

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// A Damage is an SSTable in which reads of a tablet met bytes that were not
// what was written.
type Damage struct {
	Tablet metadata.TabletID
	// Object is the SSTable, "" if the error did not tell.
	Object string
	// Reads counts the reads that failed for it, compactions included, from First
	// to Last.
	Reads       int64
	First, Last time.Time
	// Err is what the last of them met.
	Err error
}

// damages are those met since the start.
type damages struct {
	mu sync.Mutex
	m  map[damaged]*Damage
}

type damaged struct {
	tablet metadata.TabletID
	object string
}

// damage notes that a read of t failed with err, which is fault.Corruption.
func (e *Env) damage(t *Tablet, err error) {
	d := damaged{tablet: t.id}
	text := err.Error()
	// The error is one of many packages' and Pebble's own; what names the file
	// in all of them is the text.
	for _, f := range t.Row().Files {
		if strings.Contains(text, f.Object) {
			d.object = f.Object
			break
		}
	}
	now := e.Now()
	e.damages.mu.Lock()
	defer e.damages.mu.Unlock()
	if e.damages.m == nil {
		e.damages.m = map[damaged]*Damage{}
	}
	x := e.damages.m[d]
	if x == nil {
		x = &Damage{Tablet: t.id, Object: d.object, First: now}
		e.damages.m[d] = x
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

// missingIsCorrupt makes an error of opening an SSTable that is not there what
// it is to whoever wants its rows: data that was stored is lost.
func missingIsCorrupt(name string, err error) error {
	if errors.Is(err, fault.NotFound) {
		return fault.New(fault.Corruption, "SSTable %s is missing", name)
	}
	return err
}
