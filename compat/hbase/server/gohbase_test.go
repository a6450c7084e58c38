package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/filter"
	"github.com/tsuna/gohbase/hrpc"

	"github.com/trestledb/trestle/compat/hbase/model"
)

func init() { logrus.SetOutput(io.Discard) }

func (f *fixture) client(o ...gohbase.Option) gohbase.Client {
	c := gohbase.NewClient(f.zk, o...)
	f.t.Cleanup(c.Close)
	return c
}

func values(family string, pairs ...string) map[string]map[string][]byte {
	m := map[string][]byte{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = []byte(pairs[i+1])
	}
	return map[string]map[string][]byte{family: m}
}

// show returns the cells of results as text.
func show(results ...*hrpc.Result) string {
	s := ""
	for _, r := range results {
		for _, c := range r.Cells {
			s += fmt.Sprintf("%s %s:%s@%d=%s\n", c.Row, c.Family, c.Qualifier, *c.Timestamp, c.Value)
		}
	}
	return s
}

func all(t *testing.T, s hrpc.Scanner) (out []*hrpc.Result) {
	t.Helper()
	for {
		r, err := s.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
}

func TestGohbase(t *testing.T) {
	f := newFixture(t, Options{})
	f.table("t", map[string]model.Family{"f": {Versions: 3, TTL: model.Forever}, "g": {Versions: 1, TTL: model.Forever}}, nil, "c", "m")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for name, o := range map[string][]gohbase.Option{"plain": nil, "snappy": {gohbase.CompressionCodec("snappy")}} {
		t.Run(name, func(t *testing.T) {
			c := f.client(o...)
			put := func(key string, v map[string]map[string][]byte, o ...func(hrpc.Call) error) {
				t.Helper()
				p, err := hrpc.NewPutStr(ctx, "t", key, v, o...)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.Put(p); err != nil {
					t.Fatal(err)
				}
			}
			get := func(key string, o ...func(hrpc.Call) error) *hrpc.Result {
				t.Helper()
				g, err := hrpc.NewGetStr(ctx, "t", key, o...)
				if err != nil {
					t.Fatal(err)
				}
				r, err := c.Get(g)
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			for ts := range uint64(5) {
				put("a", values("f", "q", fmt.Sprint(ts)), hrpc.TimestampUint64(ts+1))
			}
			if got, want := show(get("a")), "a f:q@5=4\n"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			if got, want := show(get("a", hrpc.MaxVersions(9))), "a f:q@5=4\na f:q@4=3\na f:q@3=2\n"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			if got, want := show(get("a", hrpc.MaxVersions(9), hrpc.TimeRangeUint64(1, 4))), "a f:q@3=2\na f:q@2=1\na f:q@1=0\n"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			for i := range 26 {
				k := string(rune('a' + i))
				put(k+"x", values("g", "q", k, "r", k+k), hrpc.TimestampUint64(7))
			}
			scan := func(o ...func(hrpc.Call) error) string {
				t.Helper()
				s, err := hrpc.NewScanStr(ctx, "t", o...)
				if err != nil {
					t.Fatal(err)
				}
				return show(all(t, c.Scan(s))...)
			}
			want := ""
			for i := range 26 {
				k := string(rune('a' + i))
				want += fmt.Sprintf("%sx g:q@7=%s\n", k, k)
			}
			if got := scan(hrpc.Families(map[string][]string{"g": {"q"}})); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			for _, n := range []uint32{1, 2, 7} {
				if got := scan(hrpc.Families(map[string][]string{"g": {"q"}}), hrpc.NumberOfRows(n)); got != want {
					t.Errorf("%d rows: got %q, want %q", n, got, want)
				}
			}
			if got := scan(hrpc.Families(map[string][]string{"g": {"q"}}), hrpc.MaxResultSize(1)); got != want {
				t.Errorf("a byte at a time: got %q, want %q", got, want)
			}
			if got := scan(hrpc.Filters(filter.NewPrefixFilter([]byte("mx")))); got != "mx g:q@7=m\nmx g:r@7=mm\n" {
				t.Errorf("prefix: got %q", got)
			}
			d, err := hrpc.NewDelStr(ctx, "t", "mx", nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Delete(d); err != nil {
				t.Fatal(err)
			}
			if got := show(get("mx")); got != "" {
				t.Errorf("deleted: %q", got)
			}
			// What comes later is older than the marker.
			put("mx", values("g", "q", "late"), hrpc.TimestampUint64(8))
			if got := show(get("mx")); got != "" {
				t.Errorf("under a delete marker: %q", got)
			}
			inc, err := hrpc.NewIncStrSingle(ctx, "t", "n", "f", "n"+name, 5)
			if err != nil {
				t.Fatal(err)
			}
			for i := range int64(3) {
				if n, err := c.Increment(inc); err != nil || n != 5*(i+1) {
					t.Errorf("increment %d: %d, %v", i, n, err)
				}
			}
			app, err := hrpc.NewAppStr(ctx, "t", "n", values("f", "a"+name, "ab"))
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"ab", "abab"} {
				if r, err := c.Append(app); err != nil || len(r.Cells) != 1 || string(r.Cells[0].Value) != want {
					t.Errorf("append: %v, %v", r, err)
				}
			}
			p, err := hrpc.NewPutStr(ctx, "t", "cas", values("f", name, "new"))
			if err != nil {
				t.Fatal(err)
			}
			for _, tc := range []struct {
				expected string
				want     bool
			}{{"old", false}, {"", true}, {"", false}, {"new", true}} {
				if ok, err := c.CheckAndPut(p, "f", name, []byte(tc.expected)); err != nil || ok != tc.want {
					t.Errorf("check %q: %v, %v", tc.expected, ok, err)
				}
			}
			del, _ := hrpc.NewDelStr(ctx, "t", "nx", nil)
			if _, err := c.Delete(del); err != nil {
				t.Fatal(err)
			}
			bad, _ := hrpc.NewPutStr(ctx, "t", "x", values("nofamily", "q", "v"))
			if _, err := c.Put(bad); err == nil {
				t.Error("a put into a family that is not there")
			}
			if err := f.store.DropRowRange(ctx, f.catalog.Mapping().Resource(model.ParseName("t")), nil); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestMetaHidesTables: of a table that a caller may do nothing with there is no
// row in hbase:meta, whether the caller looks for it or reads all.
func TestMetaHidesTables(t *testing.T) {
	type caller struct{}
	f := newFixture(t, Options{
		Authorize: func(ctx context.Context, c *Call, _ Action, _ string) (context.Context, error) {
			return context.WithValue(ctx, caller{}, c.User), nil
		},
		Sees: func(ctx context.Context, table string) (bool, error) {
			return ctx.Value(caller{}) == "owner" || strings.HasSuffix(table, "/seen"), nil
		},
	})
	for _, name := range []string{"seen", "hidden"} {
		f.table(name, map[string]model.Family{"f": {}}, nil, "m")
	}
	for user, want := range map[string]string{"owner": "hbase:namespace hidden seen", "other": "hbase:namespace seen"} {
		c := f.client(gohbase.EffectiveUser(user))
		scan, err := hrpc.NewScanStr(t.Context(), "hbase:meta")
		if err != nil {
			t.Fatal(err)
		}
		tables := map[string]bool{}
		for _, r := range all(t, c.Scan(scan)) {
			name, _, _ := strings.Cut(string(r.Cells[0].Row), ",")
			tables[name] = true
		}
		if got := strings.Join(slices.Sorted(maps.Keys(tables)), " "); got != want {
			t.Errorf("%s sees %s", user, got)
		}
		get, err := hrpc.NewGetStr(t.Context(), "hidden", "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Get(get); errors.Is(err, gohbase.TableNotFound) != (user == "other") {
			t.Errorf("%s: a row of the table: %v", user, err)
		}
		for _, row := range []string{"hidden", "seen"} { // the rows of tables, beside those of regions
			get, err := hrpc.NewGetStr(t.Context(), "hbase:meta", row)
			if err != nil {
				t.Fatal(err)
			}
			if r, err := c.Get(get); err != nil || (len(r.Cells) > 0) != (user == "owner" || row == "seen") {
				t.Errorf("%s: row %s: %v %v", user, row, r, err)
			}
		}
	}
}
