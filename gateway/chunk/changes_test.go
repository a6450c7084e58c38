package chunk

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/stamp"
)

// A changeClient takes the messages of a ChangeWriter.
type changeClient struct {
	msgs []*bigtablepb.ReadChangeStreamResponse
	size int // of the largest
	n    int // records that were encoded
	fail error
}

func (c *changeClient) writer(b *budget.Budget) *ChangeWriter {
	return NewChangeWriter(ChangeOptions{
		Send: func(m mem.BufferSlice) error {
			defer m.Free()
			if c.fail != nil {
				return c.fail
			}
			raw := m.Materialize()
			p := new(bigtablepb.ReadChangeStreamResponse)
			if err := proto.Unmarshal(raw, p); err != nil {
				return err
			}
			// Byte for byte what the generated code makes.
			if again, err := (proto.MarshalOptions{Deterministic: true}).Marshal(p); err != nil || !bytes.Equal(again, raw) {
				return fmt.Errorf("%v is not encoded as by the generated code, %w", p, err)
			}
			c.msgs, c.size = append(c.msgs, p), max(c.size, len(raw))
			return nil
		},
		Cluster: "cluster-1",
		Family: func(id cell.FamilyID) (string, error) {
			if id > 90 {
				return "", errTest
			}
			return map[cell.FamilyID]string{1: "a", 2: "b"}[id], nil
		},
		Families:  func() []string { return []string{"a", "b"} },
		Token:     func(dst []byte) []byte { c.n++; return fmt.Appendf(dst, "token%d", c.n) },
		TokenSize: func() int { return 20 },
		Watermark: func() cell.Seq { return stamp.Least + 7*stamp.Stride },
		Budget:    b,
	})
}

var errTest = errors.New("test")

func set(q string, n int) changes.Change {
	return changes.Change{Op: changes.SetCell, Family: 1, Qualifier: []byte(q), Timestamp: 1000, Value: bytes.Repeat([]byte("v"), n)}
}

// What a stream may hold, by the shapes that Java's client has examples of: one
// mutation, several, each kind of them, values in two and in more parts, between others
// and next to each other, garbage collection, and records behind records.
func TestChangeShapes(t *testing.T) {
	const m = 1 << 20
	record := func(list ...changes.Change) *changes.Record {
		return &changes.Record{Stamp: stamp.Least + 64*stamp.Stride + 3, Key: []byte("row"), Changes: list}
	}
	column := changes.Change{Op: changes.DeleteColumn, Family: 1, Qualifier: []byte("q"), Times: cell.TimeRange{Start: 1000, End: 2000}}
	family := changes.Change{Op: changes.DeleteFamily, Family: 2}
	add := changes.Change{Op: changes.AddToCell, Family: 1, Qualifier: []byte("q"), Timestamp: 1000, Value: changes.AppendInput(nil, row.Input{Kind: row.IntInput, Int: 5})}
	gone := changes.Change{Op: changes.DeleteFamily, Family: 3}
	collected := record(column)
	collected.Collected = true
	for _, c := range []struct {
		name string
		in   *changes.Record
		want []string // of each message: its type, kinds of mutations, parts of values, done
	}{
		{"SetCell", record(set("q", 1)), []string{"USER set done"}},
		{"empty value", record(set("", 0)), []string{"USER set done"}},
		{"DeleteFamily", record(family), []string{"USER family done"}},
		{"DeleteColumn", record(column), []string{"USER column done"}},
		{"AddToCell", record(add), []string{"USER add done"}},
		{"DeleteRow", record(changes.Change{Op: changes.DeleteRow}), []string{"USER family family done"}},
		{"several", record(set("q", 1), family, column, add), []string{"USER set family column add done"}},
		{"garbage collection", collected, []string{"GARBAGE_COLLECTION column done"}},
		{"in two parts", record(set("q", m)), []string{"USER first", "CONTINUATION last done"}},
		{"in three parts", record(set("q", 2*m)), []string{"USER first", "CONTINUATION next", "CONTINUATION last done"}},
		{"parts and others", record(family, set("q", m), column), []string{"USER family first", "CONTINUATION last column done"}},
		{"parts next to each other", record(set("q", m), set("r", m)), []string{"USER first", "CONTINUATION last", "CONTINUATION first", "CONTINUATION last done"}},
		{"too much for one message", record(set("q", m/2), set("r", m/2), set("s", 1)), []string{"USER set", "CONTINUATION set set done"}},
		{"a family that was dropped", record(gone, set("q", 1), gone), []string{"USER set done"}},
		{"nothing else", record(gone), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := new(changeClient)
			w := client.writer(nil)
			defer w.Close()
			for range 3 { // records behind records
				if _, err := w.Record(c.in); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
			var got []string
			for i, p := range client.msgs {
				got = append(got, shape(p.GetDataChange()))
				if d := p.GetDataChange(); d.GetDone() && (d.GetToken() != fmt.Sprint("token", (i+1)/max(1, len(c.want))) || d.GetEstimatedLowWatermark().AsTime() != stamp.Time(stamp.Least+7*stamp.Stride)) {
					t.Errorf("message %d ends with %v", i, d)
				}
				if d := p.GetDataChange(); d.GetCommitTimestamp() != nil && (d.GetCommitTimestamp().AsTime() != stamp.Time(c.in.Stamp) || d.GetTiebreaker() != 3 || string(d.GetRowKey()) != "row") {
					t.Errorf("message %d begins with %v", i, d)
				}
			}
			if want := slices.Repeat(c.want, 3); !slices.Equal(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
			if client.size > 1<<20 {
				t.Errorf("a message of %d bytes", client.size)
			}
		})
	}
}

func shape(d *bigtablepb.ReadChangeStreamResponse_DataChange) string {
	s := d.GetType().String()
	for _, c := range d.GetChunks() {
		switch i := c.GetChunkInfo(); {
		case i == nil:
			switch c.GetMutation().GetMutation().(type) {
			case *bigtablepb.Mutation_SetCell_:
				s += " set"
			case *bigtablepb.Mutation_DeleteFromFamily_:
				s += " family"
			case *bigtablepb.Mutation_DeleteFromColumn_:
				s += " column"
			case *bigtablepb.Mutation_AddToCell_:
				s += " add"
			default:
				s += " ?"
			}
		case i.GetLastChunk():
			s += " last"
		case i.GetChunkedValueOffset() == 0:
			s += " first"
		default:
			s += " next"
		}
	}
	if d.GetDone() {
		s += " done"
	}
	return s
}

// Each kind of input, and ends of time ranges, as the generated code knows them.
func TestChangeFields(t *testing.T) {
	client := new(changeClient)
	w := client.writer(nil)
	defer w.Close()
	r := &changes.Record{Stamp: stamp.Least, Key: []byte("row")}
	for _, in := range []row.Input{
		{Kind: row.IntInput, Int: math.MinInt64}, {Kind: row.BytesInput}, {Kind: row.StringInput, Bytes: []byte("s")}, {Kind: row.FloatInput, Float: 0.5},
		{Kind: row.BoolInput, Int: 1}, {Kind: row.TimestampInput, Int: -1}, {Kind: row.DateInput, Int: 20_000}, {Kind: row.RawInput, Bytes: []byte{0}},
	} {
		r.Changes = append(r.Changes, changes.Change{Op: changes.MergeToCell, Family: 1, Timestamp: -5, Value: changes.AppendInput(nil, in)})
	}
	for _, times := range []cell.TimeRange{{}, cell.AllTime, {Start: 5}, {End: 5}, {Start: math.MinInt64, End: 5}} {
		r.Changes = append(r.Changes, changes.Change{Op: changes.DeleteColumn, Family: 1, Times: times})
	}
	if _, err := w.Record(r); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	chunks := client.msgs[0].GetDataChange().GetChunks()
	if in := chunks[5].GetMutation().GetMergeToCell().GetInput().GetTimestampValue(); in.AsTime().UnixMicro() != -1 {
		t.Error(in)
	}
	if in := chunks[6].GetMutation().GetMergeToCell().GetInput().GetDateValue(); in.GetYear() != 2024 || in.GetMonth() != 10 || in.GetDay() != 4 {
		t.Error(in)
	}
	for i, want := range [][2]int64{{}, {}, {5, 0}, {0, 5}, {0, 5}} {
		d := chunks[8+i].GetMutation().GetDeleteFromColumn()
		if d.GetTimeRange() == nil || d.TimeRange.StartTimestampMicros != want[0] || d.TimeRange.EndTimestampMicros != want[1] {
			t.Errorf("range %d is %v", i, d)
		}
	}
}

// A record that cannot be encoded leaves nothing behind, and those before it are sent.
func TestChangesRefused(t *testing.T) {
	b := budget.New(3 << 20)
	for name, bad := range map[string]*changes.Record{
		"no such family": {Stamp: stamp.Least, Key: []byte("row"), Changes: []changes.Change{set("q", 2<<20), {Op: changes.DeleteFamily, Family: 99}}},
		"no operation":   {Stamp: stamp.Least, Key: []byte("row"), Changes: []changes.Change{set("q", 2), {Op: 77, Family: 1}}},
		"bad input":      {Stamp: stamp.Least, Key: []byte("row"), Changes: []changes.Change{{Op: changes.AddToCell, Family: 1}}},
		"too large":      {Stamp: stamp.Least, Key: []byte("row"), Changes: []changes.Change{set("q", 4<<20)}},
	} {
		client := new(changeClient)
		w := client.writer(b)
		good := &changes.Record{Stamp: stamp.Least, Key: []byte("row"), Changes: []changes.Change{set("q", 5)}}
		for range 2 {
			if _, err := w.Record(good); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Record(bad); err == nil {
				t.Errorf("%s: no error", name)
			}
		}
		if err := w.Flush(); err != nil || len(client.msgs) != 2 {
			t.Errorf("%s: %d messages, %v", name, len(client.msgs), err)
		}
		w.Close()
	}
	// While others have the budget, small changes go on in small messages.
	if !b.Try(3 << 20) {
		t.Fatal("the budget is in use")
	}
	client := new(changeClient)
	w := client.writer(b)
	flushes := 0
	for range 2000 {
		full, err := w.Record(&changes.Record{Stamp: stamp.Least, Key: []byte("row"), Changes: []changes.Change{set("q", 100)}})
		if err != nil {
			t.Fatal(err)
		}
		if full {
			flushes++
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := w.Record(&changes.Record{Stamp: stamp.Least, Key: []byte("row"), Changes: []changes.Change{set("q", 2<<20)}}); fault.KindOf(err) != fault.Unavailable {
		t.Error(err)
	}
	if flushes < 5 {
		t.Errorf("%d flushes", flushes)
	}
	client.fail = errTest
	if err := w.Flush(); !errors.Is(err, errTest) {
		t.Error(err)
	}
	w.Close()
	b.Release(3 << 20)
	if b.Used() != 0 {
		t.Errorf("%d bytes of the budget are used", b.Used())
	}
}

func BenchmarkChangeWriter(b *testing.B) {
	w := NewChangeWriter(ChangeOptions{
		Send:      func(m mem.BufferSlice) error { m.Free(); return nil },
		Cluster:   "cluster-1",
		Family:    func(cell.FamilyID) (string, error) { return "cf", nil },
		Token:     func(dst []byte) []byte { return append(dst, "0123456789012345678901234567890123456789"...) },
		TokenSize: func() int { return 40 },
		Watermark: func() cell.Seq { return stamp.Least },
		Budget:    budget.New(1 << 30),
	})
	r := &changes.Record{Stamp: stamp.Least + 1e9, Key: []byte("row-key-of-16-by"), Changes: []changes.Change{set("q", 100)}}
	b.ReportAllocs()
	for b.Loop() {
		full, err := w.Record(r)
		if err == nil && full {
			err = w.Flush()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
