package filter

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
)

// The lines of a file that testdata/Vectors.java has written.
func vectors(t testing.TB, name string) [][]string {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var lines [][]string
	for s := bufio.NewScanner(z); s.Scan(); {
		lines = append(lines, strings.Split(s.Text(), " "))
	}
	if len(lines) == 0 {
		t.Fatal("no vectors")
	}
	return lines
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	if s == "-" {
		return []byte{}
	}
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// familyVersions are those of the region that the vectors come from.
var familyVersions = map[string]int{"f1": 3, "f2": 1, "f3": math.MaxInt}

// table returns the rows of the vectors, with the place of each cell.
func table(t testing.TB, lines [][]string) (rows [][]Cell, place map[string]int) {
	place = map[string]int{}
	var last *Cell
	versions := 0
	for i, l := range lines {
		if l[0] != "cell" {
			continue
		}
		ts, err := strconv.ParseInt(l[4], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		c := Cell{Row: unhex(t, l[1]), Family: unhex(t, l[2]), Qualifier: unhex(t, l[3]), Timestamp: ts, Value: unhex(t, l[5]), Type: 4}
		place[key(c)] = i
		if last == nil || !bytes.Equal(last.Row, c.Row) {
			rows = append(rows, nil)
			last = nil
		}
		if last == nil || !(column{last.Family, last.Qualifier}).has(&c) {
			versions = 0
		}
		last = &c
		if versions++; versions <= familyVersions[string(c.Family)] {
			rows[len(rows)-1] = append(rows[len(rows)-1], c)
		}
	}
	return rows, place
}

func key(c Cell) string { return fmt.Sprintf("%x %x %x %d", c.Row, c.Family, c.Qualifier, c.Timestamp) }

// run scans rows, following the filter's hints if it is told to.
func run(f *Filter, rows [][]Cell, o Options, hints bool, emit func([]Cell)) error {
	if o.Reversed {
		rows = slices.Clone(rows)
		slices.Reverse(rows)
	}
	for i := 0; i < len(rows) && !f.Done(); {
		out, err := f.Row(rows[i])
		if err != nil {
			return err
		}
		if len(out) > 0 {
			emit(out)
		}
		i++
		if row, ok := f.Seek(); ok && hints && !f.Done() {
			for i < len(rows) && !bytes.Equal(rows[i][0].Row, row) && (bytes.Compare(rows[i][0].Row, row) < 0) != o.Reversed {
				i++
			}
		}
	}
	return nil
}

func describe(m *pb.Filter) string {
	b := m.GetSerializedFilter()
	name := strings.TrimPrefix(m.GetName(), classPrefix)
	switch name {
	case "FilterList":
		p, _ := parse[pb.FilterList](b)
		var in []string
		for _, f := range p.GetFilters() {
			in = append(in, describe(f))
		}
		return p.GetOperator().String() + "(" + strings.Join(in, ", ") + ")"
	case "SkipFilter":
		p, _ := parse[pb.SkipFilter](b)
		return "Skip(" + describe(p.GetFilter()) + ")"
	case "WhileMatchFilter":
		p, _ := parse[pb.WhileMatchFilter](b)
		return "WhileMatch(" + describe(p.GetFilter()) + ")"
	}
	return fmt.Sprintf("%s{%q}", name, b)
}

// TestAgainstHBase holds the answers of a region of HBase against ours.
func TestAgainstHBase(t *testing.T) {
	lines := vectors(t, "vectors.txt.gz")
	rows, place := table(t, lines)
	values := map[int][]byte{}
	for i, l := range lines {
		if l[0] == "cell" {
			values[i] = unhex(t, l[5])
		}
	}
	scans, failures := 0, 0
	for i, l := range lines {
		if l[0] != "scan" {
			continue
		}
		scans++
		m := new(pb.Filter)
		if err := proto.Unmarshal(unhex(t, l[1]), m); err != nil {
			t.Fatal(err)
		}
		if text := describe(m); strings.Contains(text, "Skip(") && strings.Contains(text[strings.Index(text, "Skip("):], "MultiRowRange") {
			continue // HBase answers with a NullPointerException, or with anything
		}
		versions, _ := strconv.Atoi(l[3])
		o := Options{Reversed: l[2] == "true", Eager: l[4] == "true", Versions: func(f []byte) int { return min(versions, familyVersions[string(f)]) }}
		o.StoreOffset, _ = strconv.Atoi(l[5])
		o.StoreLimit, _ = strconv.Atoi(l[6])
		want := strings.Join(l[7:], " ")
		for _, hints := range []bool{false, true} {
			f, err := New(m, o)
			if err != nil {
				t.Fatalf("line %d: %s: %v", i+1, describe(m), err)
			}
			got := ""
			err = run(f, rows, o, hints, func(cells []Cell) {
				got += "|"
				for _, c := range cells {
					n := place[key(c)]
					got += fmt.Sprintf(" %d", n)
					if !bytes.Equal(c.Value, values[n]) {
						got += "=" + map[bool]string{true: hex.EncodeToString(c.Value), false: "-"}[len(c.Value) > 0]
					}
				}
			})
			if err != nil {
				got += "!"
			}
			if got != want {
				failures++
				if failures <= 10 {
					t.Errorf("line %d, hints %v: %s\noptions %v\ngot  %s\nwant %s", i+1, hints, describe(m), l[2:7], got, want)
				}
			}
		}
	}
	if failures > 0 {
		t.Errorf("%d of %d scans differ", failures, 2*scans)
	}
	t.Logf("%d scans", scans)
}
