package filter

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
)

// TestBytes: what a filter takes in memory is counted, also where its message is small,
// and before it is taken.
func TestBytes(t *testing.T) {
	list := func(n int, of *pb.Filter) *pb.Filter {
		l := &pb.FilterList{Operator: pb.FilterList_MUST_PASS_ONE.Enum()}
		for range n {
			l.Filters = append(l.Filters, of)
		}
		return message(t, l)
	}
	regex := func(pattern string, flags int32) *pb.Filter {
		return message(t, &pb.ValueFilter{CompareFilter: &pb.CompareFilter{CompareOp: pb.CompareType_EQUAL.Enum(), Comparator: comparatorMessage(t,
			&pb.RegexStringComparator{Pattern: &pattern, PatternFlags: &flags, Charset: proto.String("UTF-8")})}})
	}
	raw := func(of proto.Message, b []byte) *pb.Filter {
		m := message(t, of)
		m.SerializedFilter = b
		return m
	}
	deep := message(t, &pb.PrefixFilter{Prefix: make([]byte, 64<<10)})
	for range 60 {
		deep = list(1, deep)
	}
	for what, m := range map[string]*pb.Filter{
		"ranges":      raw(&pb.MultiRowRangeFilter{RowRangeList: []*pb.RowRange{{}}}, bytes.Repeat([]byte{0x0a, 0}, 100_000)),
		"prefixes":    raw(&pb.FirstKeyValueMatchingQualifiersFilter{}, bytes.Repeat([]byte{0x0a, 1, 'x'}, 100_000)),
		"timestamps":  raw(&pb.TimestampsFilter{}, append([]byte{0x0a, 0x80, 0x80, 0x40}, make([]byte, 1<<20)...)),
		"fuzzy keys":  raw(&pb.FuzzyRowFilter{}, bytes.Repeat([]byte{0x0a, 6, 0x0a, 1, 'x', 0x12, 1, 0}, 50_000)),
		"a list":      list(20_000, message(t, &pb.PageFilter{PageSize: proto.Int64(1)})),
		"comparators": list(5_000, message(t, &pb.RowFilter{CompareFilter: &pb.CompareFilter{CompareOp: pb.CompareType_EQUAL.Enum(), Comparator: binaryMessage(t, "v")}})),
		"nested":      deep,
		"letters":     list(30, regex(strings.Repeat("a.", 500), 0)),
		"folded":      list(30, regex(strings.Repeat("ab", 500), flagFold|flagUnicodeFold)),
		"groups":      list(30, regex(strings.Repeat("()", 500), 0)),
		"classes":     list(2, regex(strings.Repeat(`\p{Lu}`, 100), 0)),
		"not blank":   list(30, regex(strings.Repeat(`\H`, 500), 0)),
		"repetitions": list(2, regex(strings.Repeat("a{1000}", 50), 0)),
		"optional":    list(2, regex(strings.Repeat("a{0,1000}", 20), 0)),
		"nested ones": list(2, regex(strings.Repeat("(?:(ab){10}){0,100}", 10), 0)),
		"ends":        list(10, regex(strings.Repeat("$", 50), flagMultiline)),
		"too often":   list(10, regex(strings.Repeat("a{1001}", 100), 0)),
	} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		f, err := New(m, Options{})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		stays := int64(after.HeapAlloc) - int64(before.HeapAlloc)
		if f.Bytes() < stays {
			t.Errorf("%s: %d bytes are counted, and %d stay", what, f.Bytes(), stays)
		}
		full, most := errors.New("full"), f.Bytes()/2
		_, err = New(m, Options{Take: func(n int64) error {
			if most -= n; most < 0 {
				return full
			}
			return nil
		}})
		if !errors.Is(err, full) {
			t.Errorf("%s: %v", what, err)
		}
		runtime.KeepAlive(f)
		runtime.KeepAlive(m)
	}
}
