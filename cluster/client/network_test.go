package client_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/rpc/stream"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/conformance/backendtest"
	"github.com/trestledb/trestle/engine/loopback"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

// A network is a cluster whose servers talk over TCP.
type network struct {
	t       testing.TB
	lock    *memory.Service
	objects objectstore.Store
	dialers []*stream.Dialer // of the servers
	grace   time.Duration    // that calls have when their server ends
	ends    []func()         // what end calls
}

// atEnd has end call f, before what it was given earlier.
func (n *network) atEnd(f func()) { n.ends = append(n.ends, f) }

// end ends the network's servers, clients and master, as the end of its test does.
func (n *network) end() {
	for _, f := range slices.Backward(n.ends) {
		f()
	}
	n.ends = nil
}

// sessionTTL outlasts the pauses of a busy machine. A server whose session ends is not
// started again, and the calls of a test would wait for it for ever.
const sessionTTL = time.Minute

func newNetwork(t testing.TB, servers int) *network {
	objects, err := objectstore.OpenLocal(vfs.NewMem(), "store", objectstore.LocalOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := &network{t: t, lock: memory.New(), objects: objects, grace: time.Minute}
	t.Cleanup(n.end)
	ctx, cancel := context.WithCancel(context.Background())
	d := stream.NewDialer(stream.Options{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = master.Run(ctx, master.Options{Name: "master", Lock: n.lock.Client(nil, nil), Dialer: d, Interval: 50 * time.Millisecond, Balance: -1, Sweep: -1, TTL: sessionTTL})
	}()
	n.atEnd(func() { cancel(); <-done; d.Close() })
	for i := range servers {
		n.start(fmt.Sprintf("server-%d", i+1), "127.0.0.1:0")
	}
	return n
}

// start starts a tablet server and returns what ends it, in order, and where it
// is.
func (n *network) start(name, addr string) (stop func(), at string) {
	n.t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		n.t.Fatal(err)
	}
	at = l.Addr().String()
	d := stream.NewDialer(stream.Options{})
	var cut func()
	ts, err := tabletserver.Start(context.Background(), tabletserver.Options{Name: name, Addr: at, Lock: n.lock.Client(nil, nil), Dialer: d,
		Objects: objectstore.Sub(n.objects, "sst"), Logs: objectstore.Sub(n.objects, "log"), TTL: sessionTTL, CutReaders: func() { cut() }})
	if err != nil {
		n.t.Fatal(err)
	}
	d.Here(at, ts)
	n.dialers = append(n.dialers, d)
	s := stream.NewServer(ts, stream.ServerOptions{Encoders: encoders, Fragments: fragments})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	cut = func() {
		last, end := context.WithTimeout(context.Background(), n.grace)
		defer end()
		s.Stop(last)
		if err := <-served; err != nil {
			n.t.Error(err)
		}
	}
	var once sync.Once
	stop = func() {
		once.Do(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := ts.Close(ctx); err != nil {
				n.t.Log(err)
			}
			d.Close()
		})
	}
	n.atEnd(stop)
	return stop, at
}

// client returns a client that has no server in its process.
func (n *network) client() *client.Client {
	n.t.Helper()
	d := stream.NewDialer(stream.Options{})
	n.atEnd(d.Close)
	return n.clientOver(d)
}

// clientOver returns a client that reaches servers over d.
func (n *network) clientOver(d rpc.Dialer) *client.Client {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := n.lock.Client(nil, nil)
	schemas, err := catalog.WatchSchemas(ctx, ctx, l)
	if err != nil {
		n.t.Fatal(err)
	}
	n.atEnd(cancel)
	return client.New(client.Options{Lock: l, Dialer: d, Schemas: schemas})
}

// TestBackend: what the gateway expects of a backend holds with a network
// between client and servers.
func TestBackend(t *testing.T) {
	if testing.Short() {
		t.Skip("a cluster for each part of the suite")
	}
	backendtest.Run(t, func(t testing.TB) backend.Backend { return newNetwork(t, 3).client() })
}

// TestBackendReopened: what a cluster has answered is there after all of its
// servers have ended at once and others have begun.
func TestBackendReopened(t *testing.T) {
	if testing.Short() {
		t.Skip("a cluster for each history")
	}
	// A history of 100 steps takes seconds, as servers start and stop: fewer than where it
	// takes milliseconds.
	many, _ := strconv.Atoi(os.Getenv("RAPID_CHECKS"))
	all := flag.Lookup("rapid.checks").Value
	defer func(was string) { _ = all.Set(was) }(all.String())
	if err := all.Set(strconv.Itoa(max(4, many/20))); err != nil {
		t.Fatal(err)
	}
	var n *network // of the history in at
	var at string
	backendtest.Reopened(t, func(dir string) (backend.Backend, func(), error) {
		if dir != at {
			if n != nil {
				n.end() // its master would go on
			}
			n, at = newNetwork(t, 0), dir
		}
		var stops []func()
		for i := range 3 {
			stop, _ := n.start(fmt.Sprintf("server-%d", i+1), "127.0.0.1:0")
			stops = append(stops, stop)
		}
		d := stream.NewDialer(stream.Options{})
		return n.clientOver(d), func() {
			d.Close() // servers that stop would wait for its connections
			var all sync.WaitGroup
			for _, stop := range stops {
				all.Go(stop)
			}
			all.Wait()
		}, nil
	})
}

const table = "projects/p/instances/i/tables/t"

func key(i int) []byte { return fmt.Appendf(nil, "row%05d", i) }

// fill makes a table of some tablets with n rows.
func fill(t *testing.T, c *client.Client, tablets, n, bytes int) {
	t.Helper()
	ctx := t.Context()
	var splits [][]byte
	for i := 1; i < tablets; i++ {
		splits = append(splits, key(i*n/tablets))
	}
	if _, err := c.CreateTable(ctx, &schema.Table{Name: table, Granularity: 1000, Families: map[string]schema.Family{"f": {}}}, splits); err != nil {
		t.Fatal(err)
	}
	var entries []row.Entry
	for i := range n {
		entries = append(entries, row.Entry{Key: key(i), Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Timestamp: 1000, Value: make([]byte, bytes)}}})
	}
	err := c.MutateRows(ctx, table, entries, func(i int, err error) {
		if err != nil {
			t.Errorf("entry %d: %v", i, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// keys collects the keys of rows.
type keys struct {
	rows  []string
	full  int // EndRow says so every so many rows; 0: never
	flush int
}

func (k *keys) StartRow(key []byte)   { k.rows = append(k.rows, string(key)) }
func (k *keys) Cell(*row.Cell)        {}
func (k *keys) EndRow() (bool, error) { return k.full > 0 && len(k.rows)%k.full == 0, nil }
func (k *keys) Scanned([]byte)        {}
func (k *keys) Flush() error          { k.flush++; return nil }

// A stuckWriter receives nothing behind its first rows.
type stuckWriter struct {
	keys
	stuck, release chan struct{}
	once           sync.Once
}

func (w *stuckWriter) EndRow() (bool, error) { return true, nil }

func (w *stuckWriter) Flush() error {
	w.once.Do(func() { close(w.stuck) })
	<-w.release
	return nil
}

// TestCloseBesideStuckReader: a tablet server closes though a reader receives nothing, in the
// middle of a row.
func TestCloseBesideStuckReader(t *testing.T) {
	n := newNetwork(t, 0)
	n.grace = time.Second
	stop, _ := n.start("server-1", "127.0.0.1:0")
	c := n.client()
	fill(t, c, 1, 1, 1)
	for cell := range int64(64) { // no connection's buffers take so much
		if err := c.MutateRow(t.Context(), table, &row.Entry{Key: key(1), Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Timestamp: 1000 * cell, Value: make([]byte, 1<<20)}}}); err != nil {
			t.Fatal(err)
		}
	}
	w := &stuckWriter{stuck: make(chan struct{}), release: make(chan struct{})}
	var read sync.WaitGroup
	defer read.Wait()
	defer close(w.release)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read.Go(func() {
		_, _ = c.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{row.All}}, w)
	})
	select {
	case <-w.stuck:
	case <-time.After(time.Minute):
		t.Fatal("the reader is given nothing")
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	select {
	case <-stopped:
	case <-time.After(time.Minute):
		t.Fatal("the server waits for a reader that receives nothing")
	}
}

// TestLookups: a warm client looks nothing up, a cold one takes three reads at
// most: of the METADATA tablets' rows, and of METADATA.
func TestLookups(t *testing.T) {
	n := newNetwork(t, 3)
	fill(t, n.client(), 4, 100, 100)
	ctx := t.Context()
	c := n.client()
	read := func(i int) {
		t.Helper()
		k := new(keys)
		if _, err := c.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{row.Single(key(i))}}, k); err != nil || len(k.rows) != 1 {
			t.Fatal(err, k.rows)
		}
	}
	cost := func() int64 { return c.Metadata().Reads.Load() + c.Metadata().RootReads.Load() }
	read(0)
	if got := cost(); got > 3 {
		t.Errorf("the first call of a client cost %d reads", got)
	}
	for i := range 100 { // the neighbours came with the first tablet
		read(i)
	}
	before, lookups := cost(), c.Counters.Lookups.Load()
	for i := range 100 {
		read(i)
		if err := c.MutateRow(ctx, table, &row.Entry{Key: key(i), Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Timestamp: 1000}}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := cost() - before; got != 0 || c.Counters.Lookups.Load() != lookups {
		t.Errorf("200 calls of a warm client cost %d reads of METADATA", got)
	}
}

// TestScanAhead: a scan over many tablets gives all rows in order, whoever is
// full when, whatever moves.
func TestScanAhead(t *testing.T) {
	n := newNetwork(t, 3)
	const rows = 3000
	c := n.client()
	fill(t, c, 10, rows, 1000) // 300 kB each: more than is read ahead
	for _, full := range []int{0, 1, 7, 250} {
		for _, ranges := range [][]row.Range{
			{row.All},
			{{Start: key(10), End: key(700)}, {Start: key(701), End: key(702)}, {Start: key(1500), End: key(2999)}},
			{row.Single(key(0)), row.Single(key(1000)), row.Single(key(2000)), row.Single(key(2999))},
		} {
			var want []string
			for i := range rows {
				for _, r := range ranges {
					if r.Contains(key(i)) {
						want = append(want, string(key(i)))
					}
				}
			}
			k := &keys{full: full}
			stats, err := c.ReadRows(t.Context(), &scan.Request{Table: table, Ranges: ranges}, k)
			if err != nil || fmt.Sprint(k.rows) != fmt.Sprint(want) || stats.RowsReturned != int64(len(want)) || stats.RowsSeen < int64(len(want)) {
				t.Fatalf("%d of %d rows, %+v, %v", len(k.rows), len(want), stats, err)
			}
			if full > 0 && k.flush < len(want)/full {
				t.Errorf("%d flushes of %d rows, full every %d", k.flush, len(want), full)
			}
		}
	}
	// A reader that goes away in the middle leaves nothing behind.
	ctx, cancel := context.WithCancel(t.Context())
	_, err := c.ReadRows(ctx, &scan.Request{Table: table, Ranges: []row.Range{row.All}}, &leaving{cancel: cancel})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

type leaving struct {
	keys
	cancel context.CancelFunc
}

func (l *leaving) EndRow() (bool, error) {
	if len(l.rows) == 100 {
		l.cancel()
	}
	return false, nil
}

// TestServerRestarts: a client whose tablet servers are restarted one after the
// other loses nothing that it was told is stored, and no read fails.
func TestServerRestarts(t *testing.T) {
	n := newNetwork(t, 2)
	stop, at := n.start("restarted", loopback.Addr(t))
	c := n.client()
	fill(t, c, 9, 900, 10)
	var ending atomic.Bool
	var calls, lost atomic.Int64
	var working sync.WaitGroup
	for w := range 4 {
		working.Go(func() {
			for i := w; !ending.Load(); i += 4 {
				err := c.MutateRow(t.Context(), table, &row.Entry{Key: key(i % 900), Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Timestamp: int64(1000 * (i + 2))}}})
				if errors.Is(err, rpc.ErrUnknown) {
					lost.Add(1)
				} else if err != nil {
					t.Error(err)
				}
				k := new(keys)
				if _, err := c.ReadRows(t.Context(), &scan.Request{Table: table, Ranges: []row.Range{row.Single(key(i % 900))}}, k); err != nil || len(k.rows) != 1 {
					t.Error(err, k.rows)
				}
				calls.Add(1)
			}
		})
	}
	for range 2 {
		time.Sleep(200 * time.Millisecond)
		stop()
		stop, _ = n.start("restarted", at)
	}
	time.Sleep(200 * time.Millisecond)
	ending.Store(true)
	working.Wait()
	k := new(keys)
	if _, err := c.ReadRows(t.Context(), &scan.Request{Table: table, Ranges: []row.Range{row.All}}, k); err != nil || len(k.rows) != 900 {
		t.Error(err, len(k.rows))
	}
	t.Logf("%d calls, the outcome of %d unknown", calls.Load(), lost.Load())
	if lost.Load() > 0 {
		t.Errorf("the outcome of %d writes was unknown, though servers ended in order", lost.Load())
	}
}

// A slowStore takes its time to begin an object.
type slowStore struct {
	objectstore.Store
	delay time.Duration
}

func (s *slowStore) Create(ctx context.Context, name string) (objstorage.Writable, error) {
	time.Sleep(s.delay)
	return s.Store.Create(ctx, name)
}

// TestAllLeave: servers that are told to end at the same time all give their
// tablets up, though each has to change rows of METADATA for that, which one of
// them serves.
func TestAllLeave(t *testing.T) {
	const servers, tablets = 3, 20
	n := newNetwork(t, 0)
	n.objects = &slowStore{n.objects, 200 * time.Millisecond} // to write a memtable out
	var stops []func()
	for i := range servers {
		stop, _ := n.start(fmt.Sprintf("server-%d", i+1), "127.0.0.1:0")
		stops = append(stops, stop)
	}
	c := n.client()
	fill(t, c, tablets, 300, 10)
	// The server of METADATA has nothing else to give up, so it is done first.
	home := ""
	if err := c.Rows(t.Context(), func(r *metadata.Row) error {
		switch {
		case r.Table == metastore.Table:
			home = r.Assignment.Server
		case r.Assignment.Server == home:
			other := "server-1"
			if other == home {
				other = "server-2"
			}
			return c.Move(t.Context(), r, other, true)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	var all sync.WaitGroup
	for _, stop := range stops {
		all.Go(stop)
	}
	all.Wait()
	// A server that cannot give a tablet up tries to for a minute.
	if d := time.Since(start); d > 50*time.Second {
		t.Errorf("it took them %v", d)
	}
	n.start("later", "127.0.0.1:0")
	k := new(keys)
	if _, err := n.client().ReadRows(t.Context(), &scan.Request{Table: table, Ranges: []row.Range{row.All}}, k); err != nil || len(k.rows) != 300 {
		t.Error(err, len(k.rows))
	}
}
