package console

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"github.com/chromedp/chromedp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

var heat = flag.Duration("console.heat", 0, "for how long the tables of TestHeat are written, 10m in full; 0: not at all")

const (
	// heatRate is how many rows each table of TestHeat gets in a second: some ten times
	// what a heat map takes for too little to tell something of.
	heatRate = 100
	// heatError is by how much of a table's load a range may be off.
	heatError = 0.02
	// heatFill is how many rows a table is filled with, evenly, so that a hot range has few
	// of its bytes.
	heatFill = 4000
)

// A pattern is a table, and how it is written.
type pattern struct {
	id string
	// fill says that the table has rows everywhere before.
	fill bool
	key  func(n int64) string // of the row n
	// borders cut the table into the ranges that are compared.
	borders []string
	// kind is that of the sentence that has to be there.
	kind string
	sent []atomic.Int64 // acknowledged rows, by range
	next atomic.Int64
}

func patterns() []*pattern {
	even := func(int64) string { return fmt.Sprintf("%06d", rand.IntN(1_000_000)) }
	ps := []*pattern{
		{id: "one-row", fill: true, key: func(n int64) string {
			if n%5 == 0 {
				return even(n)
			}
			return "345678"
		}, borders: []string{"345678", "345678\x00"}, kind: "hot_row"},
		{id: "one-range", fill: true, key: func(n int64) string {
			if n%10 == 0 {
				return even(n)
			}
			return fmt.Sprintf("%06d", 500_000+rand.IntN(50_000))
		}, borders: []string{"500000", "550000"}, kind: "hot_range"},
		{id: "sequential", key: func(n int64) string { return fmt.Sprintf("s%09d", n) }, borders: []string{"s", "t"}, kind: "sequential"},
		{id: "uniform", key: even, borders: []string{"100000", "200000", "300000", "400000", "500000", "600000", "700000", "800000", "900000"}, kind: "even"},
	}
	for _, p := range ps {
		p.sent = make([]atomic.Int64, len(p.borders)+1)
	}
	return ps
}

// rangeOf returns in which of the ranges a key is.
func (p *pattern) rangeOf(key string) int {
	i, found := slices.BinarySearch(p.borders, key)
	if found {
		i++
	}
	return i
}

func (p *pattern) table() string { return instance + "/tables/" + p.id }

// acked counts a row that was written.
func (p *pattern) acked(key string) { p.sent[p.rangeOf(key)].Add(1) }

func (p *pattern) sum() (n int64) {
	for i := range p.sent {
		n += p.sent[i].Load()
	}
	return n
}

func mutation(bytes int) []*bigtablepb.Mutation {
	return []*bigtablepb.Mutation{{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{FamilyName: "f", ColumnQualifier: []byte("q"), TimestampMicros: 1000, Value: make([]byte, bytes)}}}}
}

// A heatMap is what /admin/keyvis answers.
type heatMap struct {
	Times    []time.Time
	Keys     [][]byte
	Values   [][]int64
	Findings []struct{ Kind, Text string }
}

func (s *server) heatMap(table string) (m heatMap) {
	s.t.Helper()
	resp, err := http.Get(s.url + "/admin/keyvis?metric=rows_written&table=" + url.QueryEscape(table))
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil || len(m.Keys) == 0 {
		s.t.Fatalf("%v: %s", err, b)
	}
	return m
}

// rows adds up a map by the ranges of a pattern.
func (m *heatMap) rows(p *pattern) (by []int64, all int64) {
	by = make([]int64, len(p.sent))
	for _, column := range m.Values {
		for i, v := range column {
			by[p.rangeOf(string(m.Keys[i]))] += v
			all += v
		}
	}
	return by, all
}

// write writes rows of all patterns for some time, heatRate in a second each.
func write(t *testing.T, conn *grpc.ClientConn, ps []*pattern, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	client := bigtablepb.NewBigtableClient(conn)
	var writers sync.WaitGroup
	for _, p := range ps {
		writers.Go(func() {
			tick := time.NewTicker(time.Second / heatRate)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				key := p.key(p.next.Add(1))
				if _, err := client.MutateRow(t.Context(), &bigtablepb.MutateRowRequest{TableName: p.table(), RowKey: []byte(key), Mutations: mutation(100)}); err != nil {
					t.Errorf("%s: %v", p.id, err)
					return
				}
				p.acked(key)
			}
		})
	}
	writers.Wait()
}

// TestHeat writes one hot row, one hot range, sequential and uniform keys into four tables,
// and compares heat maps with what was written: then, after a restart, and after splits.
func TestHeat(t *testing.T) {
	if *heat == 0 {
		t.Skip("NOT TESTED: heat maps of a server under load (make keyvis)")
	}
	dir := t.TempDir()
	s := startIn(t, dir, "--emulator")
	dial := func() *grpc.ClientConn {
		conn, err := grpc.NewClient(s.api, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	conn, ps := dial(), patterns()
	for _, p := range ps {
		s.post("/v2/"+instance+"/tables", object{"tableId": p.id, "table": object{"columnFamilies": object{"f": object{"gcRule": object{"maxNumVersions": 1}}}}})
		if p.fill {
			p.fillUp(t, conn)
		}
	}
	check := func(when string) {
		t.Helper()
		for _, p := range ps {
			var m heatMap
			var by []int64
			want := p.sum()
			// A column is there some seconds after its minute.
			for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
				var all int64
				m = s.heatMap(p.table())
				if by, all = m.rows(p); all == want {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("%s, %s: the map has %d rows, %d were written", when, p.id, all, want)
				}
			}
			worst := 0.0
			for i := range by {
				sent := p.sent[i].Load()
				off := float64(by[i]-sent) / float64(want)
				if worst = max(worst, off, -off); worst > heatError {
					t.Errorf("%s, %s: range %d has %d rows of %d in the map, %d were written", when, p.id, i, by[i], want, sent)
				}
			}
			var said []string
			for _, f := range m.Findings {
				said = append(said, f.Kind+": "+f.Text)
			}
			if !slices.ContainsFunc(said, func(f string) bool { return strings.HasPrefix(f, p.kind+": ") }) {
				t.Errorf("%s, %s: no sentence of %s: %q", when, p.id, p.kind, said)
			}
			t.Logf("%s, %s: %d rows, %d columns, at most %.2f %% of the load off; %q", when, p.id, want, len(m.Times), 100*worst, said)
		}
	}
	write(t, conn, ps, *heat)
	check("after " + heat.String())
	s.picture(ps, "")

	// A restart leaves what was recorded.
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	s = startIn(t, dir, "--emulator")
	conn = dial()
	check("after a restart")

	// Splits leave no seam.
	for _, p := range ps {
		for _, key := range []string{"345678", "s000001000", "525000", "800000"} {
			s.split(p.table(), key)
		}
	}
	write(t, conn, ps, *heat/5)
	check("after splits")
	s.picture(ps, "-split")
}

// fillUp writes rows everywhere.
func (p *pattern) fillUp(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	const batch = 500
	for from := 0; from < heatFill; from += batch {
		req := &bigtablepb.MutateRowsRequest{TableName: p.table()}
		for i := from; i < from+batch; i++ {
			key := fmt.Sprintf("%06d", i*(1_000_000/heatFill))
			req.Entries = append(req.Entries, &bigtablepb.MutateRowsRequest_Entry{RowKey: []byte(key), Mutations: mutation(4000)})
			p.acked(key)
		}
		stream, err := bigtablepb.NewBigtableClient(conn).MutateRows(t.Context(), req)
		for err == nil {
			var resp *bigtablepb.MutateRowsResponse
			if resp, err = stream.Recv(); err == nil {
				for _, e := range resp.GetEntries() {
					if e.GetStatus().GetCode() != 0 {
						t.Fatal(e.GetStatus())
					}
				}
			}
		}
		if err != io.EOF {
			t.Fatal(err)
		}
	}
}

// split cuts the tablet of a key in two there.
func (s *server) split(table, key string) {
	s.t.Helper()
	s.post("/admin/tablets/split", object{"table": table, "key": key})
}

// picture takes pictures of the heat maps, if there are a browser and a place for them.
func (s *server) picture(ps []*pattern, suffix string) {
	s.t.Helper()
	if *shots == "" {
		return
	}
	s.t.Run("pictures"+suffix, func(t *testing.T) {
		b := open(t, s.url)
		b.run(chromedp.EmulateViewport(1280, 900))
		for _, p := range ps {
			b.show("#/keys/" + strings.ReplaceAll(p.table(), "/", "%2F"))
			b.shot("heat-" + p.id + suffix)
		}
		if w := b.wrong(); len(w) > 0 {
			t.Error(w)
		}
	})
}
