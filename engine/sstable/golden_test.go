package sstable

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"testing"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
)

var rewrite = flag.Bool("rewrite", false, "write testdata anew")

// TestGolden opens a file that an earlier version wrote. Files are read
// forever: a change of format adds a file here and keeps this one.
func TestGolden(t *testing.T) {
	row := func(s string) []byte { return cell.AppendRow(nil, []byte(s)) }
	for _, g := range []struct {
		name    string
		entries []cell.Entry // nil if no Writer makes such a file any more
	}{
		{"v1", nil}, // without Info.PlainRows
		{"v2", []cell.Entry{
			{Key: row("com.cnn.www"), Seq: 12, Kind: cell.Set},
			{Key: cell.AppendFamily(row("com.cnn.www"), 2), Seq: 11, Kind: cell.Set},
			{Key: cell.AppendColumn(row("com.cnn.www"), 2, []byte("a\x00b")), Value: cell.AppendRanges(nil, cell.TimeRange{Start: 5, End: 9}), Seq: 10, Kind: cell.Set},
			{Key: cellKey("com.cnn.www", 2, "a\x00b", 2000), Value: []byte("second"), Seq: 9, Kind: cell.Set},
			{Key: cellKey("com.cnn.www", 2, "a\x00b", 1000), Seq: 8, Kind: cell.Delete},
			{Key: cellKey("com.cnn.www", 2, "a\x00b", 1000), Value: []byte("first"), Seq: 7, Kind: cell.Set},
			{Key: cellKey("com.cnn.www\xff", 1, "", 0), Value: bytes.Repeat([]byte("long "), 100), Seq: 6, Kind: cell.Set},
			{Key: cellKey("com.cnn.www\xff", 1, "q", 5), Value: cell.AppendUntil(nil, 99, []byte("ends")), Seq: 6, Kind: cell.SetUntil},
			{Key: cellKey("org.example", cell.TokenFamily, "token", 77), Seq: 5, Kind: cell.Set},
		}},
	} {
		t.Run(g.name, func(t *testing.T) {
			path := "testdata/" + g.name
			if *rewrite && g.entries != nil {
				f, _ := write(t, Options{BlockBytes: 256}, g.entries)
				if err := os.WriteFile(path+".sst", f.data, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			data, err := os.ReadFile(path + ".sst")
			if err != nil {
				t.Fatal(err)
			}
			r := open(t, newCache(t), &memFile{data: data})
			var got bytes.Buffer
			if err := r.Dump(t.Context(), &got, true); err != nil {
				t.Fatal(err)
			}
			if *rewrite {
				if err := os.WriteFile(path+".txt", got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), want) {
				t.Errorf("the dump is\n%s\nwant\n%s", got.Bytes(), want)
			}
		})
	}
}

// VerifyChecksums must look at storage though everything is in the cache.
func TestVerifyPastCache(t *testing.T) {
	f, _ := write(t, Options{}, rows(1000, 100))
	r := open(t, newCache(t), f)
	it := iterate(t, r, IterOptions{})
	for ok := it.First(); ok; ok = it.Next() {
	}
	if err := r.VerifyChecksums(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.data[len(f.data)/3] ^= 4
	if !it.First() {
		t.Fatal(it.Error())
	}
	if err := r.VerifyChecksums(t.Context()); !errors.Is(err, fault.Corruption) {
		t.Errorf("VerifyChecksums: %v", err)
	}
}
