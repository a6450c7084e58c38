package client_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/rpc/stream"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/chunk"
)

// encoders are those of a tablet server.
func encoders(encoding uint64, pass func(*scan.Piece, mem.BufferSlice) error) stream.Encoder {
	if encoding != chunk.Encoding {
		return nil
	}
	return chunk.NewWriter(chunk.Options{Piece: pass})
}

// A response is what a client of the gateway gets.
type response struct {
	bytes    []byte
	messages int
	scanned  [][]byte
}

// send takes messages that end with a row, and are large only if they are of one.
func (r *response) send(b mem.BufferSlice) error {
	raw := b.Materialize()
	b.Free()
	m := new(bigtablepb.ReadRowsResponse)
	if err := proto.Unmarshal(raw, m); err != nil {
		return err
	}
	commits := 0
	for _, c := range m.Chunks {
		if c.GetCommitRow() {
			commits++
		}
	}
	if n := len(m.Chunks); n > 0 && !m.Chunks[n-1].GetCommitRow() || commits > 1 && len(raw) > 4<<20 {
		return fmt.Errorf("a message of %d rows in %d bytes that ends within one", commits, len(raw))
	}
	if m.LastScannedRowKey != nil {
		r.scanned = append(r.scanned, m.LastScannedRowKey)
		m.LastScannedRowKey = nil
		var err error
		if raw, err = proto.Marshal(m); err != nil {
			return err
		}
	}
	r.bytes = append(r.bytes, raw...)
	r.messages++
	return nil
}

// read is a ReadRows of the gateway. If cells is set rows come as cells only.
func read(ctx context.Context, c *client.Client, req *scan.Request, cells bool) (*response, scan.Stats, error) {
	r := new(response)
	w := chunk.NewWriter(chunk.Options{Send: r.send, LastScanned: true})
	defer w.Close()
	var to scan.Writer = w
	if cells {
		to = struct{ scan.Writer }{w}
	}
	req = &scan.Request{Table: req.Table, Ranges: slices.Clone(req.Ranges), Limit: req.Limit, Reversed: req.Reversed, Filter: req.Filter}
	stats, err := c.ReadRows(ctx, req, to)
	if err == nil {
		err = w.Finish(nil)
	}
	if err == nil && stats.RowsReturned != w.RowsReturned() {
		err = fmt.Errorf("%d rows came, %d were counted", w.RowsReturned(), stats.RowsReturned)
	}
	return r, stats, err
}

// TestEncodedScans: what a client gets is the same, byte for byte, whether the
// rows are encoded where they are or where the client asks, with whatever is
// asked for and wherever tablets go meanwhile.
func TestEncodedScans(t *testing.T) {
	n := newNetwork(t, 3)
	const rows = 2000
	c, here := n.client(), n.clientOver(n.dialers[0])
	ctx := t.Context()
	var splits [][]byte
	for i := 1; i < 8; i++ {
		splits = append(splits, key(i*rows/8))
	}
	if _, err := c.CreateTable(ctx, &schema.Table{Name: table, Granularity: 1000, Families: map[string]schema.Family{"f": {}, "g": {}}}, splits); err != nil {
		t.Fatal(err)
	}
	var entries []row.Entry
	for i := range rows {
		set := func(family, qualifier string, bytes int) row.Mutation {
			return row.Mutation{Op: row.SetCell, Family: family, Qualifier: []byte(qualifier), Timestamp: 1000, Value: make([]byte, bytes)}
		}
		e := row.Entry{Key: key(i), Mutations: []row.Mutation{set("f", "a", 500), set("f", fmt.Sprint("b", i%3), 10), set("g", "", 300)}}
		switch i {
		case 777: // torn between servers, and larger than some clients' limit
			for k := range 5 {
				e.Mutations = append(e.Mutations, set("g", fmt.Sprint("large", k), 1<<20))
			}
		case 778:
			e.Mutations = append(e.Mutations, set("g", "one", 2<<20))
		}
		entries = append(entries, e)
	}
	err := c.MutateRows(ctx, table, entries, func(i int, err error) {
		if err != nil {
			t.Errorf("entry %d: %v", i, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	requests := map[string]*scan.Request{
		"all":                {Ranges: []row.Range{row.All}},
		"ranges":             {Ranges: []row.Range{{Start: key(3), End: key(900)}, row.Single(key(950)), {Start: key(1200)}}},
		"limit in a tablet":  {Ranges: []row.Range{row.All}, Limit: 100},
		"limit over tablets": {Ranges: []row.Range{row.All}, Limit: 700},
		"reversed":           {Ranges: []row.Range{{Start: key(100), End: key(1500)}}, Reversed: true},
		"reversed limit":     {Ranges: []row.Range{row.All}, Reversed: true, Limit: 1300},
		"a view": {Ranges: []row.Range{row.All}, Filter: &filter.Node{Op: filter.Columns,
			Columns: map[string][]row.Range{"f": {{Start: []byte("b")}}}, Children: []*filter.Node{nil}}},
		"labels": {Ranges: []row.Range{row.All}, Filter: &filter.Node{Op: filter.Chain, Children: []*filter.Node{
			{Op: filter.FamilyRegex, Pattern: []byte("g")}, {Op: filter.ApplyLabel, Label: "l"}}}},
		"few rows": {Ranges: []row.Range{row.All}, Filter: &filter.Node{Op: filter.RowKeyRegex, Pattern: []byte("row0(0|1)77.")}},
		"no rows":  {Ranges: []row.Range{row.All}, Filter: &filter.Node{Op: filter.BlockAll}},
	}
	want := map[string][]byte{}
	for name, req := range requests {
		req.Table = table
		cells, cellStats, err := read(ctx, c, req, true)
		if err != nil {
			t.Fatal(name, err)
		}
		for where, c := range map[string]*client.Client{"elsewhere": c, "in part here": here} {
			encoded, stats, err := read(ctx, c, req, false)
			if err != nil {
				t.Fatal(name, where, err)
			}
			if !bytes.Equal(cells.bytes, encoded.bytes) || stats != cellStats {
				t.Errorf("%s, %s: %d bytes, want %d; %+v, want %+v", name, where, len(encoded.bytes), len(cells.bytes), stats, cellStats)
			}
		}
		want[name] = cells.bytes
	}
	// The same while tablets are split, merged and moved: a scan goes on behind
	// what it has got.
	var ending atomic.Bool
	var moving sync.WaitGroup
	var moved atomic.Int64
	moving.Go(func() {
		for i := 0; !ending.Load(); i++ {
			var all []*metadata.Row
			if err := c.Rows(ctx, func(r *metadata.Row) error {
				if r.Tablet > 1<<31 {
					all = append(all, r)
				}
				return nil
			}); err != nil || len(all) == 0 {
				continue
			}
			r := all[i%len(all)]
			var err error
			switch {
			case i%3 == 0 && len(all) < 20:
				err = c.Split(ctx, r, nil)
			case i%3 == 1 && len(all) > 6:
				err = c.Merge(ctx, r)
			default:
				err = c.Move(ctx, r, fmt.Sprintf("server-%d", i%3+1), false)
			}
			if err == nil {
				moved.Add(1)
			}
		}
	})
	began := time.Now()
	for scans := 0; scans < 60 && moved.Load() < 12 && time.Since(began) < time.Minute; scans++ {
		asked := []*client.Client{c, here}[scans%2]
		for name, req := range requests {
			got, _, err := read(ctx, asked, req, false)
			if err != nil || !bytes.Equal(got.bytes, want[name]) {
				t.Errorf("%s: %d bytes, want %d: %v", name, len(got.bytes), len(want[name]), err)
			}
		}
	}
	ending.Store(true)
	moving.Wait()
	t.Logf("%d changes of tablets", moved.Load())
}

// TestScanned: a client that wants to know how far a scan is that finds nothing
// is told, by a server that has no row of it too.
func TestScanned(t *testing.T) {
	n := newNetwork(t, 2)
	c := n.client()
	fill(t, c, 2, 20000, 10)
	var now time.Time
	r := new(response)
	w := chunk.NewWriter(chunk.Options{Send: r.send, LastScanned: true, Now: func() time.Time { now = now.Add(time.Hour); return now }})
	defer w.Close()
	_, err := c.ReadRows(t.Context(), &scan.Request{Table: table, Ranges: []row.Range{row.All}, Filter: &filter.Node{Op: filter.ValueRegex, Pattern: []byte("x")}}, w)
	if err == nil {
		err = w.Finish(nil)
	}
	if err != nil || len(r.scanned) < 2 || !slices.IsSortedFunc(r.scanned, bytes.Compare) {
		t.Errorf("%v, scanned %q", err, r.scanned)
	}
}

// refusing is a Writer that has no memory for a row.
type refusing struct {
	*chunk.Writer
	err error
}

func (w *refusing) Room(int) ([]byte, error) { return nil, w.err }
func (w *refusing) EndRow() (bool, error)    { return false, w.err }

// TestWriterRefuses: a row that cannot be taken is not left out: the scan ends.
func TestWriterRefuses(t *testing.T) {
	n := newNetwork(t, 2)
	c := n.client()
	fill(t, c, 2, 100, 10)
	for _, cells := range []bool{false, true} {
		w := &refusing{chunk.NewWriter(chunk.Options{Send: new(response).send}), rpc.ErrNotServing}
		var to scan.Writer = w
		if cells {
			to = struct{ scan.Writer }{w}
		}
		began := time.Now()
		stats, err := c.ReadRows(t.Context(), &scan.Request{Table: table, Ranges: []row.Range{row.All}}, to)
		if err == nil || stats.RowsReturned != 0 || time.Since(began) > 30*time.Second {
			t.Errorf("cells %v: %+v, %v, after %v", cells, stats, err, time.Since(began))
		}
		w.Close()
	}
}
