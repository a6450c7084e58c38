package chunk

import (
	"bytes"
	"errors"
	"testing"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

func plainRow(r testRow) *bigtablepb.Row {
	out := &bigtablepb.Row{Key: r.key}
	var f *bigtablepb.Family
	var col *bigtablepb.Column
	for _, c := range r.cells {
		if f == nil || f.Name != c.Family {
			f, col = &bigtablepb.Family{Name: c.Family}, nil
			out.Families = append(out.Families, f)
		}
		if col == nil || !bytes.Equal(col.Qualifier, c.Qualifier) {
			col = &bigtablepb.Column{Qualifier: c.Qualifier}
			f.Columns = append(f.Columns, col)
		}
		col.Cells = append(col.Cells, &bigtablepb.Cell{TimestampMicros: c.Timestamp, Value: c.Value, Labels: c.Labels})
	}
	return out
}

func writeRow(w *Row, r testRow) error {
	w.StartRow(r.key)
	for i := range r.cells {
		w.Cell(&r.cells[i])
	}
	_, err := w.EndRow()
	return err
}

// The bytes are those of the generated code.
func TestRowAgainstGeneratedCode(t *testing.T) {
	prefix := bytes.Repeat([]byte("p"), Headroom)
	w := &Row{Budget: budget.New(1 << 30)}
	rapid.Check(t, func(rt *rapid.T) {
		for _, r := range genRows(rt) {
			if err := writeRow(w, r); err != nil {
				rt.Fatal(err)
			}
			want, err := proto.MarshalOptions{Deterministic: true}.Marshal(plainRow(r))
			if err != nil {
				rt.Fatal(err)
			}
			n, ok := w.Len()
			if ok != (len(r.cells) > 0) {
				rt.Fatalf("a row of %d cells: %v", len(r.cells), ok)
			}
			if !ok {
				continue
			}
			p := prefix[:rapid.IntRange(0, Headroom).Draw(rt, "prefix")]
			b := w.Take(p)
			got, isPrefix := bytes.CutPrefix(b.ReadOnlyData(), p)
			if !isPrefix || n != len(want) || !bytes.Equal(got, want) {
				rt.Fatalf("%d bytes, not the %d of the generated code", len(got), len(want))
			}
			b.Free()
		}
	})
	if w.Budget.Used() != 0 {
		t.Error("something is still charged")
	}
}

func TestRowLimits(t *testing.T) {
	w := &Row{Budget: budget.New(4 << 20)}
	err := writeRow(w, bigRow("k", 10, 1<<20))
	if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind != fault.Exhausted || f.RetryAfter != 0 {
		t.Errorf("more than all of the budget: %v", err)
	}
	w.Budget.Try(3 << 20)
	err = writeRow(w, bigRow("k", 3, 1<<20))
	w.Budget.Release(3 << 20)
	if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind != fault.Unavailable || f.RetryAfter == 0 {
		t.Errorf("beyond the budget: %v", err)
	}
	if _, ok := w.Len(); ok || w.Budget.Used() != 0 {
		t.Error("a failed row is still there")
	}
	w = &Row{}
	value := make([]byte, 64<<20)
	w.StartRow([]byte("k"))
	for i := range 4 {
		w.Cell(&row.Cell{Family: "f", Qualifier: []byte{byte(i)}, Value: value})
	}
	_, err = w.EndRow()
	if f, ok := errors.AsType[*fault.Error](err); !ok || f.Reason != "LargeRowReadError" || f.Metadata["rowKeyBase64Encoded"] == "" {
		t.Errorf("a row above 256 MiB: %v", err)
	}
	// A read that fails in the middle of a row leaves nothing to send.
	w.StartRow([]byte("k"))
	w.Cell(&row.Cell{Family: "f"})
	if _, ok := w.Len(); ok {
		t.Error("half a row")
	}
	w.Reset()
}

func BenchmarkSessionRow(b *testing.B) {
	w := new(Row)
	r := bigRow("row-0001", 1, 1000)
	b.ReportAllocs()
	for b.Loop() {
		if writeRow(w, r) != nil {
			b.Fatal("not written")
		}
		w.Take(nil).Free()
	}
}
