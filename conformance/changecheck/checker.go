package changecheck

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/gateway/wire"
)

// A Checker judges the records of all streams that read a table, each of which goes
// on where another ended. It is safe for concurrent use.
type Checker struct {
	mu      sync.Mutex
	rows    map[string]*rowState
	records int
}

type rowState struct {
	records []*Record
}

// New returns a Checker that has seen nothing.
func New() *Checker { return &Checker{rows: map[string]*rowState{}} }

// A Stream is one ReadChangeStream. It is not safe for concurrent use.
type Stream struct {
	c         *Checker
	rows      row.Range
	m         Machine
	watermark time.Time
}

// Stream begins a stream of a partition that no watermark was told of, or after
// watermark was.
func (c *Checker) Stream(partition row.Range, watermark time.Time) *Stream {
	return &Stream{c: c, rows: partition, watermark: watermark}
}

// Watermark returns the last that was told.
func (s *Stream) Watermark() time.Time { return s.watermark }

// Take takes the next message. An error says which invariant it breaks.
func (s *Stream) Take(resp *bigtablepb.ReadChangeStreamResponse) (Event, error) {
	e, err := s.m.Take(resp)
	if err != nil {
		return e, err
	}
	switch {
	case e.Record != nil:
		r := e.Record
		if !s.rows.Contains(r.Key) {
			return e, fmt.Errorf("row %q in the partition [%q, %q)", r.Key, s.rows.Start, s.rows.End)
		}
		if !r.Commit.After(s.watermark) {
			return e, fmt.Errorf("row %q: commit %v, after watermark %v was told", r.Key, r.Commit, s.watermark)
		}
		if err := s.c.add(r); err != nil {
			return e, err
		}
		return e, s.told(r.Watermark)
	case e.Heartbeat != nil:
		p, err := wire.RowRange(e.Heartbeat.ContinuationToken.Partition.RowRange)
		if err != nil || !bytes.Equal(p.Start, s.rows.Start) || !bytes.Equal(p.End, s.rows.End) {
			return e, fmt.Errorf("a token of %v", e.Heartbeat.ContinuationToken.Partition)
		}
		return e, s.told(e.Heartbeat.EstimatedLowWatermark.AsTime())
	case e.Close != nil:
		return e, s.covers(e.Close)
	}
	return e, nil
}

func (s *Stream) told(w time.Time) error {
	if w.Before(s.watermark) {
		return fmt.Errorf("watermark %v after %v", w, s.watermark)
	}
	s.watermark = w
	return nil
}

// covers tells whether tokens cover the partition exactly, each in its new one.
func (s *Stream) covers(c *bigtablepb.ReadChangeStreamResponse_CloseStream) error {
	if len(c.ContinuationTokens) == 0 {
		return nil
	}
	var all []row.Range
	at := s.rows.Start
	for i, t := range c.ContinuationTokens {
		p, err := wire.RowRange(t.GetPartition().GetRowRange())
		if err != nil {
			return err
		}
		if !bytes.Equal(p.Start, at) {
			return fmt.Errorf("token %d of the close begins at %q, not at %q", i, p.Start, at)
		}
		at = p.End
		all = append(all, p)
		if len(c.NewPartitions) == 0 {
			continue
		}
		n, err := wire.RowRange(c.NewPartitions[i].GetRowRange())
		if err != nil {
			return err
		}
		if in := p.Intersect(n); !bytes.Equal(in.Start, p.Start) || !bytes.Equal(in.End, p.End) {
			return fmt.Errorf("token %d is of [%q, %q), its new partition [%q, %q)", i, p.Start, p.End, n.Start, n.End)
		}
	}
	all = row.Union(all)
	if len(all) != 1 || !bytes.Equal(all[0].End, s.rows.End) {
		return fmt.Errorf("the tokens of the close end at %q, the partition at %q", at, s.rows.End)
	}
	return nil
}

func (c *Checker) add(r *Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.rows[string(r.Key)]
	if st == nil {
		st = new(rowState)
		c.rows[string(r.Key)] = st
	}
	if n := len(st.records); n > 0 {
		switch last := st.records[n-1]; {
		case r.Commit.Equal(last.Commit) && r.Tiebreaker == last.Tiebreaker:
			return fmt.Errorf("row %q: commit %v came twice", r.Key, r.Commit)
		case !r.Commit.After(last.Commit):
			return fmt.Errorf("row %q: commit %v after %v", r.Key, r.Commit, last.Commit)
		}
	}
	st.records = append(st.records, r)
	c.records++
	return nil
}

// Records returns how many there were.
func (c *Checker) Records() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.records
}

// Row returns the records of a row so far, in order.
func (c *Checker) Row(key string) []*Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	if st := c.rows[key]; st != nil {
		return slices.Clone(st.records)
	}
	return nil
}

// Missing returns an error unless the users' records of every row are those that were
// written, in this order. want has the mutations of each write by row, as a stream
// tells them.
func (c *Checker) Missing(want map[string][][]*bigtablepb.Mutation) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, writes := range want {
		st := c.rows[key]
		if st == nil {
			return fmt.Errorf("row %q: no record of %d writes", key, len(writes))
		}
		i := 0
		for _, r := range st.records {
			if r.Collected {
				continue
			}
			if i == len(writes) {
				return fmt.Errorf("row %q: a record of no write: %v", key, r.Mutations)
			}
			if err := equal(writes[i], r.Mutations); err != nil {
				return fmt.Errorf("row %q, write %d: %w", key, i, err)
			}
			i++
		}
		if i < len(writes) {
			return fmt.Errorf("row %q: %d records of %d writes", key, i, len(writes))
		}
	}
	for key := range c.rows {
		if want[key] == nil {
			return fmt.Errorf("row %q: records of no write", key)
		}
	}
	return nil
}

func equal(want, got []*bigtablepb.Mutation) error {
	if len(want) != len(got) {
		return fmt.Errorf("%d mutations, not %d", len(got), len(want))
	}
	for i := range want {
		if !proto.Equal(want[i], got[i]) {
			return fmt.Errorf("mutation %d is %v, not %v", i, got[i], want[i])
		}
	}
	return nil
}

// A Cell is where a value is in a table.
type Cell struct {
	Key, Family, Qualifier string
	Timestamp              int64
}

// Apply returns the table that the records make of an empty one. AddToCell adds
// 64-bit numbers; other aggregates are not known.
func (c *Checker) Apply() (map[Cell]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[Cell]string{}
	for key, st := range c.rows {
		cells := map[Cell]string{}
		for _, r := range st.records {
			for _, m := range r.Mutations {
				if err := apply(cells, key, m); err != nil {
					return nil, err
				}
			}
		}
		for k, v := range cells {
			out[k] = v
		}
	}
	return out, nil
}

func apply(cells map[Cell]string, key string, m *bigtablepb.Mutation) error {
	remove := func(in func(Cell) bool) {
		for k := range cells {
			if in(k) {
				delete(cells, k)
			}
		}
	}
	switch m := m.GetMutation().(type) {
	case *bigtablepb.Mutation_SetCell_:
		s := m.SetCell
		cells[Cell{key, s.FamilyName, string(s.ColumnQualifier), s.TimestampMicros}] = string(s.Value)
	case *bigtablepb.Mutation_DeleteFromFamily_:
		remove(func(k Cell) bool { return k.Family == m.DeleteFromFamily.FamilyName })
	case *bigtablepb.Mutation_DeleteFromColumn_:
		d := m.DeleteFromColumn
		start, end := d.GetTimeRange().GetStartTimestampMicros(), d.GetTimeRange().GetEndTimestampMicros()
		remove(func(k Cell) bool {
			return k.Family == d.FamilyName && k.Qualifier == string(d.ColumnQualifier) && k.Timestamp >= start && (end == 0 || k.Timestamp < end)
		})
	case *bigtablepb.Mutation_AddToCell_:
		a := m.AddToCell
		k := Cell{key, a.FamilyName, string(a.GetColumnQualifier().GetRawValue()), a.GetTimestamp().GetRawTimestampMicros()}
		n := a.GetInput().GetIntValue()
		if v := a.GetInput().GetRawValue(); len(v) == 8 {
			n = int64(binary.BigEndian.Uint64(v))
		}
		if old := cells[k]; len(old) == 8 {
			n += int64(binary.BigEndian.Uint64([]byte(old)))
		}
		cells[k] = string(binary.BigEndian.AppendUint64(nil, uint64(n)))
	default:
		return fmt.Errorf("row %q: %T", key, m)
	}
	return nil
}
