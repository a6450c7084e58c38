package wire

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
)

type rr = bigtablepb.RowRange

func closed(s string) *bigtablepb.RowRange_StartKeyClosed {
	return &bigtablepb.RowRange_StartKeyClosed{StartKeyClosed: []byte(s)}
}

func open(s string) *bigtablepb.RowRange_StartKeyOpen {
	return &bigtablepb.RowRange_StartKeyOpen{StartKeyOpen: []byte(s)}
}

func endClosed(s string) *bigtablepb.RowRange_EndKeyClosed {
	return &bigtablepb.RowRange_EndKeyClosed{EndKeyClosed: []byte(s)}
}

func endOpen(s string) *bigtablepb.RowRange_EndKeyOpen {
	return &bigtablepb.RowRange_EndKeyOpen{EndKeyOpen: []byte(s)}
}

func TestRowSet(t *testing.T) {
	long := strings.Repeat("k", 4097)
	for _, c := range []struct {
		name string
		in   *bigtablepb.RowSet
		want string
	}{
		{"nil", nil, "[,)"},
		{"empty", &bigtablepb.RowSet{}, "[,)"},
		{"keys", &bigtablepb.RowSet{RowKeys: [][]byte{[]byte("b"), []byte("a"), []byte("b")}}, `[a,a\x00) [b,b\x00)`},
		{"unset range", &bigtablepb.RowSet{RowRanges: []*rr{{}}}, "[,)"},
		{"closed open", &bigtablepb.RowSet{RowRanges: []*rr{{StartKey: closed("a"), EndKey: endOpen("b")}}}, "[a,b)"},
		{"open closed", &bigtablepb.RowSet{RowRanges: []*rr{{StartKey: open("a"), EndKey: endClosed("b")}}}, `[a\x00,b\x00)`},
		{"empty ends", &bigtablepb.RowSet{RowRanges: []*rr{{StartKey: closed("a"), EndKey: endOpen("")}, {StartKey: closed("b"), EndKey: endClosed("")}}}, "[a,)"},
		{"one row", &bigtablepb.RowSet{RowRanges: []*rr{{StartKey: closed("a"), EndKey: endClosed("a")}}}, `[a,a\x00)`},
		{"no row", &bigtablepb.RowSet{RowRanges: []*rr{{StartKey: closed("a"), EndKey: endOpen("a")}}}, ""},
		{"no row either", &bigtablepb.RowSet{RowRanges: []*rr{{StartKey: open("a"), EndKey: endClosed("a")}}}, ""},
		{"union", &bigtablepb.RowSet{RowKeys: [][]byte{[]byte("c"), []byte("m")}, RowRanges: []*rr{{StartKey: closed("x"), EndKey: endOpen("z")}, {StartKey: closed("a"), EndKey: endOpen("d")}}}, `[a,d) [m,m\x00) [x,z)`},
		{"long bound", &bigtablepb.RowSet{RowRanges: []*rr{{StartKey: closed(long)}}}, "[" + long + ",)"},
		{"inverted", &bigtablepb.RowSet{RowRanges: []*rr{{StartKey: closed("b"), EndKey: endOpen("a")}}},
			"rows.row_ranges[0]: Error in field 'rows' : Error in field 'row_ranges' : Error in element #0 : start_key_closed must be less than end_key_open"},
		{"inverted open", &bigtablepb.RowSet{RowRanges: []*rr{{}, {StartKey: open("b"), EndKey: endClosed("a")}}},
			"rows.row_ranges[1]: Error in field 'rows' : Error in field 'row_ranges' : Error in element #1 : start_key_open must be less than end_key_closed"},
		{"empty key", &bigtablepb.RowSet{RowKeys: [][]byte{[]byte("a"), {}}},
			"rows.row_keys[1]: Error in field 'rows' : Error in field 'row_keys' : Error in element #1 : Row keys must be non-empty"},
		{"long key", &bigtablepb.RowSet{RowKeys: [][]byte{[]byte(long)}},
			"rows.row_keys[0]: Error in field 'rows' : Error in field 'row_keys' : Error in element #0 : Row keys must be at most 4096 bytes, but got 4097"},
	} {
		got := ""
		rs, err := RowSet(c.in)
		var f *fault.Error
		if errors.As(err, &f) {
			got = f.Field + ": " + f.Msg
		} else {
			var parts []string
			for _, r := range rs {
				parts = append(parts, strings.ReplaceAll(fmt.Sprintf("[%s,%s)", r.Start, r.End), "\x00", `\x00`))
			}
			got = strings.Join(parts, " ")
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestFilterRefusals(t *testing.T) {
	pass := &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_PassAllFilter{PassAllFilter: true}}
	no := &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_PassAllFilter{}}
	chain := func(fs ...*bigtablepb.RowFilter) *bigtablepb.RowFilter {
		return &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_Chain_{Chain: &bigtablepb.RowFilter_Chain{Filters: fs}}}
	}
	deep := pass
	for range 20 {
		deep = chain(deep, pass)
	}
	ok := pass
	for range 19 {
		ok = chain(ok, pass)
	}
	if _, err := Filter("filter", ok); err != nil {
		t.Errorf("20 levels: %v", err)
	}
	deepest := pass
	for range 1500 {
		deepest = chain(deepest)
	}
	for _, c := range []struct {
		name, field, text string
		f                 *bigtablepb.RowFilter
	}{
		{"false", "filter.pass_all_filter", "pass_all_filter must be true if set", no},
		{"nested false", "filter.chain.filters[1].pass_all_filter", "pass_all_filter must be true if set", chain(pass, no)},
		{"sink", "filter.sink", "sink must be true if set", &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_Sink{}}},
		{"deep", "", "nesting depth of 20", deep},
		{"deepest", "", "nesting depth of 20", deepest},
		{"size", "filter", "Row filter exceeds maximum size of 20480 bytes",
			&bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_ValueRegexFilter{ValueRegexFilter: bytes.Repeat([]byte("a"), 20480)}}},
		{"short chain", "", "Chain must contain at least two RowFilters", chain(pass)},
	} {
		_, err := Filter("filter", c.f)
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != fault.Invalid || !strings.Contains(f.Msg, c.text) || c.field != "" && f.Field != c.field {
			t.Errorf("%s: got %+v", c.name, err)
		}
	}
}

func TestFilterConversion(t *testing.T) {
	in := &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_Condition_{Condition: &bigtablepb.RowFilter_Condition{
		PredicateFilter: &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_ColumnRangeFilter{ColumnRangeFilter: &bigtablepb.ColumnRange{
			FamilyName:     "f",
			StartQualifier: &bigtablepb.ColumnRange_StartQualifierOpen{StartQualifierOpen: []byte("a")},
			EndQualifier:   &bigtablepb.ColumnRange_EndQualifierClosed{EndQualifierClosed: []byte("b")},
		}}},
		FalseFilter: &bigtablepb.RowFilter{Filter: &bigtablepb.RowFilter_TimestampRangeFilter{TimestampRangeFilter: &bigtablepb.TimestampRange{StartTimestampMicros: 5}}},
	}}}
	n, err := Filter("filter", in)
	if err != nil {
		t.Fatal(err)
	}
	p, f := n.Children[0], n.Children[2]
	if n.Op != filter.Condition || n.Children[1] != nil || p.Family != "f" || !p.Start.Open || string(p.Start.Key) != "a" || p.End.Open || !p.End.Set ||
		f.Times.Start != 5 || !f.Times.Contains(1<<62) {
		t.Errorf("got %+v", n)
	}
	if n, err := Filter("filter", nil); n != nil || err != nil {
		t.Errorf("nil: %v, %v", n, err)
	}
}

func TestRow(t *testing.T) {
	r := Row([]byte("k"), []row.Cell{
		{Family: "a", Qualifier: []byte("x"), Timestamp: 2}, {Family: "a", Qualifier: []byte("x"), Timestamp: 1},
		{Family: "a", Qualifier: []byte("y"), Timestamp: 1}, {Family: "b", Qualifier: []byte("y"), Timestamp: 1},
	})
	if len(r.Families) != 2 || len(r.Families[0].Columns) != 2 || len(r.Families[0].Columns[0].Cells) != 2 || len(r.Families[1].Columns) != 1 {
		t.Errorf("got %v", r)
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct {
		name        string
		strict, lax bool
	}{
		{"projects/p/instances/inst/tables/t", true, true},
		{"projects/{{projectId}}/instances/my_inst/tables/t.1-x", false, true},
		{"projects/p/instances/Inst/tables/t", false, true},
		{"projects/p/instances/inst/tables/", false, false},
		{"projects/p/instances/inst/tables/.t", false, false},
		{"projects/p/instances/inst/tables/a/b", false, false},
		{"projects/p/instances/inst/tables/" + strings.Repeat("t", 51), false, false},
		{"projects//instances/inst/tables/t", false, false},
		{"projects/" + strings.Repeat("p", MaxName-len("projects//instances/inst/tables/t")) + "/instances/inst/tables/t", true, true},
		{"projects/" + strings.Repeat("p", MaxName) + "/instances/inst/tables/t", false, false},
		{"projects/p/instances/" + strings.Repeat("i", MaxName) + "/tables/t", false, false},
		{"projects/p/instances//tables/t", false, false},
		{"projects/p/tables/t", false, false},
		{"t", false, false},
	} {
		for _, lax := range []bool{false, true} {
			inst, err := CheckTable("table_name", c.name, lax)
			want := c.strict
			if lax {
				want = c.lax
			}
			if (err == nil) != want {
				t.Errorf("%s, lax %v: %v", c.name, lax, err)
			}
			if err == nil && inst+c.name[strings.Index(c.name, "/tables/"):] != c.name {
				t.Errorf("%s: instance %q", c.name, inst)
			}
		}
	}
	err := CheckInstance("name", "projects/x/instances/abc_123", false)
	const want = "When parsing 'projects/x/instances/abc_123' : Instance name expected in the form 'projects/<project_id>/instances/<instance_id>'."
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

func TestStatus(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	ctx := context.Background()
	detail := func(st *status.Status, like any) any {
		for _, d := range st.Details() {
			if fmt.Sprintf("%T", d) == fmt.Sprintf("%T", like) {
				return d
			}
		}
		return nil
	}

	f := fault.InvalidField("a.b", "bad")
	st := Status(ctx, logger, fmt.Errorf("outer: %w", f))
	br, _ := detail(st, &errdetails.BadRequest{}).(*errdetails.BadRequest)
	info, _ := detail(st, &errdetails.ErrorInfo{}).(*errdetails.ErrorInfo)
	if st.Code() != codes.InvalidArgument || st.Message() != "bad" || br.GetFieldViolations()[0].GetField() != "a.b" || info.GetDomain() != ErrorDomain || info.GetReason() == "" {
		t.Errorf("got %v", st.Proto())
	}

	st = Status(ctx, logger, &fault.Error{Kind: fault.Exhausted, Msg: "full", Reason: "DISK_FULL", RetryAfter: time.Second, Metadata: map[string]string{"k": "v"}})
	ri, _ := detail(st, &errdetails.RetryInfo{}).(*errdetails.RetryInfo)
	qf, _ := detail(st, &errdetails.QuotaFailure{}).(*errdetails.QuotaFailure)
	info, _ = detail(st, &errdetails.ErrorInfo{}).(*errdetails.ErrorInfo)
	if st.Code() != codes.ResourceExhausted || ri.GetRetryDelay().AsDuration() != time.Second || len(qf.GetViolations()) != 1 || info.GetReason() != "DISK_FULL" || info.GetMetadata()["k"] != "v" {
		t.Errorf("got %v", st.Proto())
	}

	for err, want := range map[error]codes.Code{
		context.Canceled: codes.Canceled,
		fmt.Errorf("read: %w", context.DeadlineExceeded):        codes.DeadlineExceeded,
		fmt.Errorf("x: %w", fault.NotFound):                     codes.NotFound,
		fmt.Errorf("x: %w", fault.Fenced):                       codes.Unavailable,
		status.Error(codes.Unauthenticated, "no"):               codes.Unauthenticated,
		fault.New(fault.Unavailable, "x: %w", context.Canceled): codes.Unavailable,
	} {
		if got := Status(ctx, logger, err).Code(); got != want || Code(err) != want {
			t.Errorf("%v: got %v and %v, want %v", err, got, Code(err), want)
		}
	}
	if log.Len() > 0 {
		t.Errorf("logged: %s", log.String())
	}
	for _, err := range []error{
		errors.New("open /secret/path"), fmt.Errorf("read /secret/path: %w", fault.Corruption),
		fault.New(fault.Internal, "/secret/path"),
	} {
		log.Reset()
		st = Status(ctx, logger, err)
		info, _ = detail(st, &errdetails.ErrorInfo{}).(*errdetails.ErrorInfo)
		id := info.GetMetadata()["errorId"]
		if strings.Contains(st.String(), "secret") || id == "" || !strings.Contains(log.String(), id) || !strings.Contains(log.String(), "secret") || !strings.Contains(st.Message(), id) {
			t.Errorf("client %v, log %s", st, log.String())
		}
	}
	st = Status(ctx, logger, fmt.Errorf("dial 10.0.0.1: %w", fault.Unavailable))
	if st.Code() != codes.Unavailable || strings.Contains(st.Message(), "10.0.0.1") {
		t.Errorf("got %v", st)
	}
	if Status(ctx, logger, nil) != nil || StatusProto(ctx, logger, nil) == nil {
		t.Errorf("nil error")
	}
	// A text with bytes of a key in it still gets through.
	st = Status(ctx, logger, fault.InvalidField("row_key", "row \xff"))
	if _, err := proto.Marshal(st.Proto()); err != nil || len(st.Details()) != 2 {
		t.Errorf("got %v", st)
	}
}

// Whatever a refusal repeats of a request, the client gets a status that trailers of 8 KiB have
// room for, and the end of the text, which says what was wrong.
func TestStatusesAreBounded(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, s := range map[string]string{
		"letters": long, "bytes": strings.Repeat("\x80", 4096), "bytes between letters": strings.Repeat("\x80 ", 2048), "signs": strings.Repeat("本", 4096), "nothing": "",
	} {
		valid := strings.ToValidUTF8(s, "?")
		for _, e := range []*fault.Error{
			{Kind: fault.Invalid, Field: "field." + valid}, {Kind: fault.NotFound, Metadata: map[string]string{"family": valid}},
			{Kind: fault.FailedPrecondition, Field: "field"}, {Kind: fault.Exhausted, Metadata: map[string]string{"subject": long}},
		} {
			e.Msg = "The row '" + s + "' was refused"
			st := Status(t.Context(), slog.New(slog.DiscardHandler), e)
			if n := proto.Size(st.Proto()); n > 4<<10 && e.Metadata == nil || n > 4<<10+maxMetadata {
				t.Errorf("%s: %v is %d bytes", name, e.Kind, n)
			}
			if m := st.Message(); len(m) > maxText || !utf8.ValidString(m) || !strings.HasPrefix(m, "The row '") || !strings.HasSuffix(m, "' was refused") || len(st.Details()) == 0 {
				t.Errorf("%s: %v %q", name, e.Kind, m)
			}
		}
	}
	// A text of usual length, and the key of a row that is too large, stay as they are.
	key := strings.Repeat("k", 5464)
	text := strings.Repeat("ä", maxText/2)
	st := Status(t.Context(), slog.New(slog.DiscardHandler), &fault.Error{Kind: fault.FailedPrecondition, Msg: text, Metadata: map[string]string{"key": key}})
	if info := st.Details()[0].(*errdetails.ErrorInfo); st.Message() != text || info.GetMetadata()["key"] != key {
		t.Errorf("got %v", st)
	}
}

// Every kind has a row in the table.
func TestKinds(t *testing.T) {
	for k := fault.Invalid; k <= fault.Internal; k++ {
		if int(k) >= len(kinds) || kinds[k].code == codes.OK || kinds[k].reason == "" || !kinds[k].public && kinds[k].text == "" {
			t.Errorf("%v has no complete row", k)
		}
	}
}

func TestFeatures(t *testing.T) {
	b, err := proto.Marshal(&bigtablepb.FeatureFlags{ReverseScans: true, RetryInfo: true, MicrosecondTimestamp: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []*base64.Encoding{base64.URLEncoding, base64.RawURLEncoding, base64.StdEncoding, base64.RawStdEncoding} {
		ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(FeaturesHeader, e.EncodeToString(b)))
		if f := Features(ctx); !f.GetReverseScans() || !f.GetRetryInfo() {
			t.Errorf("got %v", f)
		}
	}
	for _, v := range []string{"!!!", "/////w"} {
		ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(FeaturesHeader, v))
		if f := Features(ctx); f != nil {
			t.Errorf("%q: got %v", v, f)
		}
	}
	if Features(context.Background()) != nil {
		t.Error("features out of nothing")
	}
}

// A small message must not become a large thing in memory.
func TestAmplification(t *testing.T) {
	empty := func(field byte, n int) []byte { return bytes.Repeat([]byte{field<<3 | 2, 0}, n) }
	// An AddToCell whose input is an array of a million empty values.
	array := protowire.AppendBytes([]byte{4<<3 | 2}, empty(1, 1<<20)) // Value.array_value
	in := protowire.AppendBytes([]byte{4<<3 | 2}, array)              // AddToCell.input
	addTo := protowire.AppendBytes([]byte{5<<3 | 2}, in)              // Mutation.add_to_cell
	for name, c := range map[string]struct {
		r Decoder
		b []byte
	}{
		"array":     {new(MutateRowRequest), protowire.AppendBytes([]byte{3<<3 | 2}, addTo)},
		"mutations": {new(MutateRowRequest), empty(3, 1<<20)},
		"entries":   {new(MutateRowsRequest), empty(2, 1<<20)},
		"branches":  {new(CheckAndMutateRowRequest), append(empty(4, 1<<20), empty(5, 1<<20)...)},
		"predicate": {new(CheckAndMutateRowRequest), protowire.AppendBytes([]byte{6<<3 | 2}, protowire.AppendBytes([]byte{2<<3 | 2}, empty(1, 1<<20)))},
		"rules":     {new(ReadModifyWriteRowRequest), empty(3, 1<<20)},
		"filter":    {new(ReadRowsRequest), protowire.AppendBytes([]byte{3<<3 | 2}, protowire.AppendBytes([]byte{2<<3 | 2}, empty(1, 1<<20)))},
		"ranges":    {new(ReadRowsRequest), protowire.AppendBytes([]byte{2<<3 | 2}, empty(2, 3<<20))},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := c.r.DecodeWire(mem.BufferSlice{mem.SliceBuffer(c.b)}, mem.DefaultBufferPool(), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
			t.Errorf("%s: %d bytes of message take %d of memory", name, len(c.b), n)
		}
		if err := c.r.(interface{ Check() error }).Check(); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
