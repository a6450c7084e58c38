package filter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
)

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func message(t testing.TB, m proto.Message) *pb.Filter {
	name := string(m.ProtoReflect().Descriptor().Name())
	return &pb.Filter{Name: proto.String(classPrefix + name), SerializedFilter: marshal(t, m)}
}

func comparatorMessage(t testing.TB, m proto.Message) *pb.Comparator {
	name := string(m.ProtoReflect().Descriptor().Name())
	return &pb.Comparator{Name: proto.String(classPrefix + name), SerializedComparator: marshal(t, m)}
}

func binaryMessage(t testing.TB, v string) *pb.Comparator {
	return comparatorMessage(t, &pb.BinaryComparator{Comparable: &pb.ByteArrayComparable{Value: []byte(v)}})
}

// TestNarrowed: what Rows, Family and Qualifiers allow to leave out changes
// nothing of the result.
func TestNarrowed(t *testing.T) {
	lines := vectors(t, "vectors.txt.gz")
	rows, _ := table(t, lines)
	byRows, byFamily, byQualifier := 0, 0, 0
	for i, l := range lines {
		if l[0] != "scan" {
			continue
		}
		m := new(pb.Filter)
		if err := proto.Unmarshal(unhex(t, l[1]), m); err != nil {
			t.Fatal(err)
		}
		o := Options{Reversed: l[2] == "true", Eager: l[4] == "true"}
		result := func(rows [][]Cell) (string, *Filter) {
			f, err := New(m, o)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			if err := run(f, rows, o, true, func(cells []Cell) {
				for _, c := range cells {
					got.WriteString(key(c) + "\n")
				}
			}); err != nil {
				return "error", f
			}
			return got.String(), f
		}
		want, f := result(rows)
		if want == "error" {
			continue // a cell that is left out cannot be the one at fault
		}
		f, _ = New(m, o)
		ranges, narrow := f.Rows()
		lo, hi := f.Qualifiers()
		if narrow {
			byRows++
		}
		if len(lo)+len(hi) > 0 {
			byQualifier++
		}
		left := false
		var few [][]Cell
		for _, cells := range rows {
			if narrow && !slices.ContainsFunc(ranges, func(r Range) bool {
				return bytes.Compare(cells[0].Row, r.Start) >= 0 && (len(r.End) == 0 || bytes.Compare(cells[0].Row, r.End) < 0)
			}) {
				continue
			}
			cells = slices.DeleteFunc(slices.Clone(cells), func(c Cell) bool {
				out := !f.Family(c.Family)
				left = left || out
				return out || bytes.Compare(c.Qualifier, lo) < 0 || len(hi) > 0 && bytes.Compare(c.Qualifier, hi) >= 0
			})
			if len(cells) > 0 {
				few = append(few, cells)
			}
		}
		if left {
			byFamily++
		}
		if got, _ := result(few); got != want {
			t.Errorf("line %d: %s: rows %q %v, qualifiers [%q, %q): got\n%s\nwant\n%s", i+1, describe(m), ranges, narrow, lo, hi, got, want)
			return
		}
	}
	if byRows < 100 || byFamily < 20 || byQualifier < 50 {
		t.Errorf("narrowed by rows %d times, by family %d, by qualifier %d", byRows, byFamily, byQualifier)
	}
}

func TestRegexAgainstJava(t *testing.T) {
	lines := vectors(t, "regex.txt.gz")
	var texts [][]byte
	for _, l := range lines {
		if l[0] == "text" {
			texts = append(texts, unhex(t, l[1]))
		}
	}
	differ, back := 0, 0
	for i, l := range lines {
		if l[0] == "text" {
			continue
		}
		flags, err := strconv.Atoi(l[0])
		if err != nil {
			t.Fatal(err)
		}
		pattern := string(unhex(t, l[2]))
		c, err := newRegexComparator(&pb.RegexStringComparator{Pattern: proto.String(pattern), PatternFlags: proto.Int32(int32(flags)), Charset: proto.String("UTF-8")}, new(decoder))
		got := "!"
		if err == nil {
			got = ""
			if c.(*regexComparator).back != nil {
				back++
			}
			for _, v := range texts {
				n, err := Compare(c, v)
				if err != nil {
					t.Fatalf("line %d: %q: %v", i+1, pattern, err)
				}
				got += strconv.Itoa(n)
			}
		}
		if got != l[1] {
			if differ++; differ <= 20 {
				t.Errorf("line %d: %q with flags %#x: got %s, want %s (%v)", i+1, pattern, flags, got, l[1], err)
			}
		}
	}
	if differ > 0 {
		t.Errorf("%d of %d patterns differ", differ, len(lines)-len(texts))
	}
	t.Logf("%d patterns, %d of them backtrack", len(lines)-len(texts), back)
}

func TestUnreadable(t *testing.T) {
	nested := message(t, &pb.FirstKeyOnlyFilter{})
	for range maxDepth + 1 {
		nested = message(t, &pb.SkipFilter{Filter: nested})
	}
	valueFilter := func(c *pb.Comparator) *pb.Filter {
		return message(t, &pb.ValueFilter{CompareFilter: &pb.CompareFilter{CompareOp: pb.CompareType_EQUAL.Enum(), Comparator: c}})
	}
	regex := func(pattern, charset string) *pb.Filter {
		return valueFilter(comparatorMessage(t, &pb.RegexStringComparator{Pattern: &pattern, PatternFlags: proto.Int32(32), Charset: &charset}))
	}
	for want, m := range map[string]*pb.Filter{
		"java.lang.ClassNotFoundException: com.example.Mine": {Name: proto.String("com.example.Mine")},
		"java.lang.ClassNotFoundException: " + classPrefix + "FilterAllFilter": {
			Name: proto.String(classPrefix + "FilterAllFilter")},
		"nested":                 nested,
		"read PageFilter":        {Name: proto.String(classPrefix + "PageFilter"), SerializedFilter: []byte{1}},
		"page size -1":           message(t, &pb.PageFilter{PageSize: proto.Int64(-1)}),
		"No ranges found":        message(t, &pb.MultiRowRangeFilter{}),
		"Invalid range":          message(t, &pb.MultiRowRangeFilter{RowRangeList: []*pb.RowRange{{StartRow: []byte("b"), StopRow: []byte("a")}}}),
		"Fuzzy pair lengths":     message(t, &pb.FuzzyRowFilter{FuzzyKeysData: []*pb.BytesBytesPair{{First: []byte("b"), Second: []byte{}}}}),
		"without a comparator":   valueFilter(nil),
		"NotFoundException: x.y": valueFilter(&pb.Comparator{Name: proto.String("x.y")}),
		"LongComparator of 2":    valueFilter(comparatorMessage(t, &pb.LongComparator{Comparable: &pb.ByteArrayComparable{Value: []byte("ab")}})),
		"PatternSyntaxException": regex("(", ""),
		"Charset":                regex("a", "EBCDIC"),
		"Unknown Compare op": message(t, &pb.SingleColumnValueFilter{CompareOp: pb.CompareType_NO_OP.Enum(),
			Comparator: binaryMessage(t, "a")}),
		"prefixes must be distinct": message(t, &pb.MultipleColumnPrefixFilter{SortedPrefixes: [][]byte{{1}, {1}}}),
	} {
		_, err := New(m, Options{})
		if e, ok := errors.AsType[*Error](err); !ok || e.Class != "org.apache.hadoop.hbase.DoNotRetryIOException" || !strings.Contains(e.Msg, want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

func TestFuzzyMasks(t *testing.T) {
	// The same pattern, "a?c", as each version of HBase's client sends it.
	for _, c := range []struct {
		mask []byte
		v2   *bool
	}{
		{[]byte{0, 1, 0}, nil}, {[]byte{0, 1, 0}, proto.Bool(true)},
		{[]byte{0xff, 2, 0xff}, nil}, {[]byte{0xff, 2, 0xff}, proto.Bool(true)}, {[]byte{0xff, 0, 0xff}, nil},
	} {
		f, err := New(message(t, &pb.FuzzyRowFilter{FuzzyKeysData: []*pb.BytesBytesPair{{First: []byte("a\x00c"), Second: c.mask}}, IsMaskV2: c.v2}), Options{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, row := range []string{"aac", "aad", "abc", "abcd", "bbc"} {
			out, err := f.Row([]Cell{{Row: []byte(row), Family: []byte("f")}})
			if err != nil {
				t.Fatal(err)
			}
			if len(out) > 0 {
				got = append(got, row)
			}
		}
		if !slices.Equal(got, []string{"aac", "abc", "abcd"}) || !f.Done() {
			t.Errorf("mask %v, v2 %v: rows %q, done %v", c.mask, c.v2, got, f.Done())
		}
	}
}

func TestHints(t *testing.T) {
	for _, c := range []struct {
		m        *pb.Filter
		reversed bool
		row      string
		seek     string
	}{
		{message(t, &pb.PrefixFilter{Prefix: []byte("m")}), false, "a", "m"},
		{message(t, &pb.PrefixFilter{Prefix: []byte("m\xff")}), true, "z", "n"},
		{message(t, &pb.MultiRowRangeFilter{RowRangeList: []*pb.RowRange{{StartRow: []byte("m"), StopRow: []byte("p")}}}), false, "a", "m"},
		{message(t, &pb.MultiRowRangeFilter{RowRangeList: []*pb.RowRange{{StartRow: []byte("m"), StopRow: []byte("p")}}}), true, "z", "p"},
		{message(t, &pb.FuzzyRowFilter{FuzzyKeysData: []*pb.BytesBytesPair{{First: []byte("a?c"), Second: []byte{0, 1, 0}}}}), false, "abd", "acc"},
	} {
		f, err := New(c.m, Options{Reversed: c.reversed})
		if err != nil {
			t.Fatal(err)
		}
		out, err := f.Row([]Cell{{Row: []byte(c.row), Family: []byte("f"), Qualifier: []byte("q")}, {Row: []byte(c.row), Family: []byte("g")}})
		if seek, ok := f.Seek(); !ok || string(seek) != c.seek || len(out) > 0 || err != nil {
			t.Errorf("%s: row %q gives %v, %v, seek %q", describe(c.m), c.row, out, err, seek)
		}
	}
}

func TestComparators(t *testing.T) {
	number := func(scale int32, unscaled ...byte) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(scale)), unscaled...)
	}
	dec := func(b []byte) proto.Message {
		return &pb.BigDecimalComparator{Comparable: &pb.ByteArrayComparable{Value: b}}
	}
	regex := func(pattern, charset string) proto.Message {
		return &pb.RegexStringComparator{Pattern: &pattern, PatternFlags: proto.Int32(32), Charset: &charset}
	}
	for _, c := range []struct {
		m     proto.Message
		value []byte
		want  int
	}{
		{dec(number(0, 1)), number(1, 10), 0},
		{dec(number(2147483647, 1)), number(-2147483648, 1), -1},
		{dec(number(-2147483648, 0xff)), number(2147483647, 0xff), -1},
		{dec(number(2147483647, 0)), number(-2147483648, 0), 0},
		{dec(number(0, 0xff)), number(0, 0), -1},
		{dec(number(1, 99)), number(0, 10), -1},
		{dec(number(-1, 1)), number(0, 9), 1},
		{&pb.SubstringComparator{Substr: proto.String("ÄB")}, []byte("xäbx"), 0},
		{&pb.SubstringComparator{Substr: proto.String("aB")}, []byte("xAbx"), 0},
		{&pb.SubstringComparator{Substr: proto.String("")}, nil, 0},
		{&pb.SubstringComparator{Substr: proto.String("abc")}, []byte("ab"), 1},
		{&pb.BinaryComponentComparator{Value: []byte("bc"), Offset: proto.Uint32(1)}, []byte("abcd"), 0},
		{&pb.BinaryComponentComparator{Value: []byte("bc"), Offset: proto.Uint32(9)}, []byte("abcd"), 1},
		{regex("^.$", "ISO-8859-1"), []byte{0xe4}, 0},
		{regex("ä", "latin1"), []byte{0xe4}, 0},
		{regex(`a\Rb`, "UTF-8"), []byte("a\r\nb"), 0},
		{regex(`a\Rb`, "UTF-8"), []byte("a\n\nb"), 1},
		{regex("^ä$", "UTF-8"), []byte("ä"), 0},
		{regex("^\ufffd$", "US-ASCII"), []byte{0xe4}, 0},
		{regex("(a+)+b", "UTF-8"), bytes.Repeat([]byte("a"), 1<<16), 1},
	} {
		cmp, err := DecodeComparator(comparatorMessage(t, c.m), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Compare(cmp, c.value); got != c.want || err != nil {
			t.Errorf("%v against %.20q: %d, %v, want %d", c.m, c.value, got, err, c.want)
		}
	}
	long, err := DecodeComparator(comparatorMessage(t, &pb.LongComparator{Comparable: &pb.ByteArrayComparable{Value: make([]byte, 8)}}), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Compare(long, []byte("abc")); err == nil {
		t.Error("a long was compared with three bytes")
	}
}

// A pattern that backtracks without end is given up.
func TestCatastrophicPattern(t *testing.T) {
	c, err := newRegexComparator(&pb.RegexStringComparator{Pattern: proto.String(`^(a+)+(?=x)$`), PatternFlags: proto.Int32(0)}, new(decoder))
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if _, err := Compare(c, bytes.Repeat([]byte("a"), 40)); err == nil || time.Since(begin) > time.Minute {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
}

// FuzzFilter decodes a filter and evaluates it; nothing may panic, and what
// comes out was put in.
func FuzzFilter(f *testing.F) {
	lines := vectors(f, "vectors.txt.gz")
	rows, place := table(f, lines)
	for i, l := range lines {
		if l[0] == "scan" && i%20 == 0 {
			f.Add(unhex(f, l[1]), l[2] == "true", uint8(i))
		}
	}
	f.Fuzz(func(t *testing.T, wire []byte, reversed bool, how uint8) {
		m := new(pb.Filter)
		if proto.Unmarshal(wire, m) != nil {
			return
		}
		o := Options{Reversed: reversed, Eager: how&1 != 0, StoreLimit: int(how >> 1 & 3), StoreOffset: int(how >> 3 & 1)}
		flt, err := New(m, o)
		if err != nil {
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatal(err)
			}
			return
		}
		flt.Rows()
		flt.Qualifiers()
		flt.Family([]byte("f1"))
		err = run(flt, rows, o, how&0x80 != 0, func(cells []Cell) {
			for _, c := range cells {
				if _, ok := place[key(c)]; !ok {
					t.Fatalf("cell %s", key(c))
				}
			}
		})
		if _, ok := errors.AsType[*Error](err); err != nil && !ok {
			t.Fatal(err)
		}
	})
}

func FuzzRegex(f *testing.F) {
	for i, l := range vectors(f, "regex.txt.gz") {
		if l[0] != "text" && i%40 == 0 {
			flags, _ := strconv.Atoi(l[0])
			f.Add(string(unhex(f, l[2])), int32(flags), []byte("ab"))
		}
	}
	f.Fuzz(func(t *testing.T, pattern string, flags int32, value []byte) {
		if len(pattern) > 200 || len(value) > 100 {
			return
		}
		c, err := newRegexComparator(&pb.RegexStringComparator{Pattern: &pattern, PatternFlags: &flags}, new(decoder))
		if err != nil {
			return
		}
		if b := c.(*regexComparator).back; b != nil {
			b.MatchTimeout = 10 * time.Millisecond
		}
		Compare(c, value)
	})
}

func benchmarkRows(n int) [][]Cell {
	r := rand.New(rand.NewPCG(1, 2))
	rows := make([][]Cell, n)
	for i := range rows {
		row := []byte("row" + strconv.Itoa(1000000+i))
		for q := range 10 {
			value := []byte("value" + strconv.Itoa(r.IntN(1000)))
			rows[i] = append(rows[i], Cell{Row: row, Family: []byte("cf"), Qualifier: []byte("q" + strconv.Itoa(q)), Timestamp: 1, Value: value})
		}
	}
	return rows
}

func BenchmarkFilters(b *testing.B) {
	rows := benchmarkRows(1000)
	scvf := message(b, &pb.SingleColumnValueFilter{ColumnFamily: []byte("cf"), ColumnQualifier: []byte("q5"), CompareOp: pb.CompareType_GREATER.Enum(),
		Comparator: binaryMessage(b, "value5"), FilterIfMissing: proto.Bool(true), LatestVersionOnly: proto.Bool(true)})
	valueFilter := func(c *pb.Comparator) *pb.Filter {
		return message(b, &pb.ValueFilter{CompareFilter: &pb.CompareFilter{CompareOp: pb.CompareType_EQUAL.Enum(), Comparator: c}})
	}
	for name, m := range map[string]*pb.Filter{
		"KeyOnly":           message(b, &pb.KeyOnlyFilter{LenAsVal: proto.Bool(false)}),
		"ColumnPrefix":      message(b, &pb.ColumnPrefixFilter{Prefix: []byte("q7")}),
		"SingleColumnValue": scvf,
		"ValueRegex": valueFilter(comparatorMessage(b, &pb.RegexStringComparator{Pattern: proto.String("e9[0-9]$"), PatternFlags: proto.Int32(32),
			Charset: proto.String("UTF-8")})),
		"ValueSubstring": valueFilter(comparatorMessage(b, &pb.SubstringComparator{Substr: proto.String("e99")})),
		"All": message(b, &pb.FilterList{Operator: pb.FilterList_MUST_PASS_ALL.Enum(), Filters: []*pb.Filter{
			message(b, &pb.PrefixFilter{Prefix: []byte("row")}), scvf, message(b, &pb.PageFilter{PageSize: proto.Int64(1 << 40)})}}),
		"One": message(b, &pb.FilterList{Operator: pb.FilterList_MUST_PASS_ONE.Enum(), Filters: []*pb.Filter{
			message(b, &pb.ColumnPrefixFilter{Prefix: []byte("q7")}), message(b, &pb.ColumnPrefixFilter{Prefix: []byte("q2")})}}),
	} {
		b.Run(name, func(b *testing.B) {
			f, err := New(m, Options{})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if _, err := f.Row(rows[i%len(rows)]); err != nil {
					b.Fatal(err)
				}
				i++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/10, "ns/cell")
		})
	}
}

// BenchmarkDecode decodes filters, which each request does anew.
func BenchmarkDecode(b *testing.B) {
	scvf := message(b, &pb.SingleColumnValueFilter{ColumnFamily: []byte("cf"), ColumnQualifier: []byte("q5"), CompareOp: pb.CompareType_GREATER.Enum(),
		Comparator: binaryMessage(b, "value5"), FilterIfMissing: proto.Bool(true), LatestVersionOnly: proto.Bool(true)})
	ranges := &pb.MultiRowRangeFilter{}
	for i := range 1000 {
		ranges.RowRangeList = append(ranges.RowRangeList, &pb.RowRange{StartRow: []byte("row" + strconv.Itoa(1000000+i)), StartRowInclusive: proto.Bool(true),
			StopRow: []byte("row" + strconv.Itoa(1000000+i) + "x"), StopRowInclusive: proto.Bool(false)})
	}
	for name, m := range map[string]*pb.Filter{
		"Prefix": message(b, &pb.PrefixFilter{Prefix: []byte("row")}),
		"List":   message(b, &pb.FilterList{Operator: pb.FilterList_MUST_PASS_ALL.Enum(), Filters: []*pb.Filter{message(b, &pb.PrefixFilter{Prefix: []byte("row")}), scvf}}),
		"Ranges": message(b, ranges),
		"Regex": message(b, &pb.ValueFilter{CompareFilter: &pb.CompareFilter{CompareOp: pb.CompareType_EQUAL.Enum(), Comparator: comparatorMessage(b,
			&pb.RegexStringComparator{Pattern: proto.String("^user-[0-9a-f]{8}-e9[0-9]$"), PatternFlags: proto.Int32(32), Charset: proto.String("UTF-8")})}}),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := New(m, Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
