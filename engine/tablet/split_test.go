package tablet

import (
	"testing"

	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/sstable"
)

// Splitting and merging over and over must not use up the numbers of runs: a
// split gives both sides the next number, and merges once added them.
func TestMergeNumbersRunsAnew(t *testing.T) {
	file := func(run uint64, lo, hi string) metadata.FileRef {
		return metadata.FileRef{Object: lo, Run: run, Info: sstable.Info{Lo: []byte(lo), Hi: []byte(hi)}}
	}
	a := &metadata.Row{End: []byte("m"), NextRun: 1 << 63, Files: []metadata.FileRef{
		file(1<<63-1, "a", "c"), file(7, "a", "b"), file(7, "c", "d"), file(2, "b", "c")}}
	b := &metadata.Row{Start: []byte("m"), NextRun: 1 << 63, Files: []metadata.FileRef{
		file(7, "n", "o"), file(7, "p", "q"), file(2, "n", "q")}}
	m := mergeRows(a, b)
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	if m.NextRun != 5 || len(m.Files) != 7 {
		t.Errorf("%d files, next run %d", len(m.Files), m.NextRun)
	}
	want := []uint64{4, 4, 3, 2, 1, 1, 0}
	for i, f := range m.Files {
		if f.Run != want[i] {
			t.Errorf("file %d (%s) has run %d, want %d", i, f.Object, f.Run, want[i])
		}
	}
	if a.Files[0].Run != 1<<63-1 || b.Files[0].Run != 7 {
		t.Error("the rows that were merged have changed")
	}
}
