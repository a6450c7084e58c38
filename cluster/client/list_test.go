package client_test

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/lock/memory"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/cluster/rpc/stream"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// A watched dialer changes what servers tell of their tablets, and counts reads.
type watched struct {
	rpc.Dialer
	mu    sync.Mutex
	reads int
	// tell, if it is set, is what a server tells instead.
	tell func(addr string, details []rpc.TabletDetail, err error) ([]rpc.TabletDetail, error)
}

func (d *watched) Dial(addr string) rpc.TabletServer {
	return watchedServer{d.Dialer.Dial(addr), d, addr}
}

type watchedServer struct {
	rpc.TabletServer
	d    *watched
	addr string
}

func (s watchedServer) Describe(ctx context.Context, table uint64, groups bool) ([]rpc.TabletDetail, error) {
	details, err := s.TabletServer.Describe(ctx, table, groups)
	if s.d.tell != nil {
		s.d.mu.Lock()
		defer s.d.mu.Unlock()
		return s.d.tell(s.addr, details, err)
	}
	return details, err
}

func (s watchedServer) ReadRows(ctx context.Context, at rpc.Target, req *rpc.Read, w scan.Writer) ([]row.Range, scan.Stats, error) {
	s.d.mu.Lock()
	s.d.reads++
	s.d.mu.Unlock()
	return s.TabletServer.ReadRows(ctx, at, req, w)
}

// TestTablets: a list has each row in one tablet, also while servers do not answer, are of an
// earlier version, or tell of what has been split or merged meanwhile. METADATA is read of
// what they do not tell, and of nothing else.
func TestTablets(t *testing.T) {
	n := newNetwork(t, 2)
	stop := stream.NewDialer(stream.Options{})
	t.Cleanup(stop.Close)
	d := &watched{Dialer: stop}
	c := n.clientOver(d)
	const many, few = "projects/p/instances/i/tables/many", "projects/p/instances/i/tables/few"
	families := map[string]schema.Family{"f": {Name: "f"}}
	if _, err := c.CreateTable(t.Context(), &schema.Table{Name: many, Granularity: 1000, Families: families, Stream: &schema.Stream{Life: 1, Retention: time.Hour}}, [][]byte{[]byte("b"), []byte("c"), []byte("d"), []byte("e"), []byte("f")}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateTable(t.Context(), &schema.Table{Name: few, Granularity: 1000, Families: families}, nil); err != nil {
		t.Fatal(err)
	}
	// A flush notes in METADATA that changes are kept. It waits for the tablets to be served.
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		if err := c.MutateRow(t.Context(), many, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{{Op: row.SetCell, Family: "f"}}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{many, few} {
		if err := c.FlushTablets(t.Context(), name, row.All); err != nil {
			t.Fatal(err)
		}
	}
	list := func(name string) []tablet.Info {
		t.Helper()
		all, err := c.Tablets(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	starts := func(all []tablet.Info) (out []string) {
		for i, one := range all {
			out = append(out, string(one.Rows.Start))
			if i+1 < len(all) && all[i+1].Table == one.Table && !bytes.Equal(one.Rows.End, all[i+1].Rows.Start) {
				t.Errorf("%q ends at %q, and %q comes next", one.Rows.Start, one.Rows.End, all[i+1].Rows.Start)
			}
		}
		return out
	}
	// check compares a list of everything with want, which is of a table.
	check := func(when string, want []string, read bool) {
		t.Helper()
		d.reads = 0
		all := list("")
		if got := starts(all); !slices.Equal(got, slices.Concat([]string{""}, want, []string{""})) || all[0].Table != few || all[1].Table != many || all[len(all)-1].Table != "METADATA" {
			t.Errorf("%s: %q", when, got)
		}
		if got := starts(list(many)); !slices.Equal(got, want) {
			t.Errorf("%s: %q of one table", when, got)
		}
		if (d.reads > 0) != read {
			t.Errorf("%s: %d reads", when, d.reads)
		}
		for _, one := range all {
			if one.Server == "" || one.Changes.Since.IsZero() != (one.Table != many) {
				t.Errorf("%s: %+v", when, one)
			}
		}
	}
	if names := c.TableNames(); !slices.Equal(names, []string{few, many, "METADATA"}) {
		t.Errorf("tables %q", names)
	}
	six := []string{"", "b", "c", "d", "e", "f"}
	want := list("")
	check("all answer", six, false)
	same := func(when string) {
		t.Helper()
		for i, one := range list("") {
			w := want[i]
			if one.Tablet != w.Tablet || one.Server != w.Server || one.Changes != w.Changes || !one.LastMajor.Equal(w.LastMajor) {
				t.Errorf("%s: %+v, want %+v", when, one, w)
			}
		}
	}

	d.tell = func(addr string, details []rpc.TabletDetail, err error) ([]rpc.TabletDetail, error) {
		return nil, errors.New("planted")
	}
	check("no server answers", six, true)
	same("no server answers")
	d.tell = func(_ string, details []rpc.TabletDetail, err error) ([]rpc.TabletDetail, error) {
		for i := range details {
			details[i].Kept = nil
		}
		return details, err
	}
	check("servers of an earlier version", six, true)
	same("servers of an earlier version")
	// A hole in the middle, and one at each end.
	for _, hole := range []string{"", "c", "f"} {
		d.tell = func(_ string, details []rpc.TabletDetail, err error) ([]rpc.TabletDetail, error) {
			return slices.DeleteFunc(details, func(d rpc.TabletDetail) bool { return string(d.Start) == hole }), err
		}
		check("none tells of "+hole, six, true)
		same("none tells of " + hole)
	}

	// What servers told before tablets were merged and split, but for a tablet that was given up.
	before := map[string][]rpc.TabletDetail{}
	d.tell = func(addr string, details []rpc.TabletDetail, err error) ([]rpc.TabletDetail, error) {
		before[addr] = append(before[addr], details...)
		return details, err
	}
	list("")
	d.tell = nil
	if err := c.MergeAt(t.Context(), many, []byte("b")); err != nil {
		t.Fatal(err)
	}
	merged := []string{"", "b", "d", "e", "f"}
	check("after a merge", merged, false)
	for _, gone := range []string{"b", "c"} {
		d.tell = func(addr string, _ []rpc.TabletDetail, err error) ([]rpc.TabletDetail, error) {
			return slices.DeleteFunc(slices.Clone(before[addr]), func(d rpc.TabletDetail) bool { return string(d.Start) == gone }), err
		}
		check("during a merge, without "+gone, merged, true)
	}
	d.tell = nil
	if err := c.SplitAt(t.Context(), many, []byte("c")); err != nil {
		t.Fatal(err)
	}
	check("after a split", six, false)

	// A server that has lost a tablet to another still tells of it.
	var old rpc.TabletDetail
	d.tell = func(_ string, details []rpc.TabletDetail, err error) ([]rpc.TabletDetail, error) {
		for _, x := range details {
			if string(x.Start) == "d" {
				old = x
			}
		}
		return details, err
	}
	at := slices.IndexFunc(list(many), func(i tablet.Info) bool { return string(i.Rows.Start) == "d" })
	from := list(many)[at].Server
	to := "server-1"
	if from == to {
		to = "server-2"
	}
	d.tell = nil
	if err := c.MoveAt(t.Context(), many, []byte("d"), to); err != nil {
		t.Fatal(err)
	}
	d.tell = func(_ string, details []rpc.TabletDetail, err error) ([]rpc.TabletDetail, error) {
		if !slices.ContainsFunc(details, func(x rpc.TabletDetail) bool { return x.Tablet == old.Tablet }) {
			details = append(details, old)
		}
		return details, err
	}
	check("after a move", six, false)
	if now := list(many)[at]; now.Server != to || now.Tablet != old.Tablet {
		t.Errorf("%+v is not at %s", now, to)
	}
}

// TestNoMetadata: a cluster whose master has yet to make METADATA has no tablets.
func TestNoMetadata(t *testing.T) {
	n := &network{t: t, lock: memory.New()}
	c := n.client()
	if all, err := c.Tablets(t.Context(), ""); err != nil || len(all) > 0 {
		t.Error(all, err)
	}
	if _, err := c.Tablets(t.Context(), "METADATA"); !errors.Is(err, fault.NotFound) {
		t.Error(err)
	}
}

// An earlier dialer has servers of a version that knows no sums.
type earlier struct{ rpc.Dialer }

func (d earlier) Dial(addr string) rpc.TabletServer { return earlierServer{d.Dialer.Dial(addr)} }

type earlierServer struct{ rpc.TabletServer }

func (earlierServer) Sum(context.Context, uint64) (*rpc.TabletSum, error) {
	return nil, fault.New(fault.Unimplemented, "this tablet server knows no call %q", "Sum")
}

// TestSums: servers and locality groups have the sums of the tablets, as servers of an earlier
// version describe them.
func TestSums(t *testing.T) {
	n := newNetwork(t, 2)
	d := stream.NewDialer(stream.Options{})
	t.Cleanup(d.Close)
	c, old := n.clientOver(d), n.clientOver(earlier{d})
	const name = "projects/p/instances/i/tables/t"
	if _, err := c.CreateTable(t.Context(), &schema.Table{Name: name, Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}}}, [][]byte{[]byte("b"), []byte("c"), []byte("d")}); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b", "c", "d"} {
		if err := c.MutateRow(t.Context(), name, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{{Op: row.SetCell, Family: "f"}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.FlushTablets(t.Context(), name, row.All); err != nil {
		t.Fatal(err)
	}
	_, groups, err := c.Groups(t.Context(), name)
	if err != nil || len(groups) != 1 || groups[0].Files != 4 || groups[0].Runs != 1 || groups[0].Bytes <= 0 {
		t.Errorf("%+v, %v", groups, err)
	}
	if _, same, err := old.Groups(t.Context(), name); err != nil || !reflect.DeepEqual(same, groups) {
		t.Errorf("of an earlier version %+v, want %+v, %v", same, groups, err)
	}
	tablets, err := c.Tablets(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*client.Client{c, old} {
		servers, err := c.Servers(t.Context())
		if err != nil || len(servers) != 2 {
			t.Fatal(servers, err)
		}
		count := 0
		for _, s := range servers {
			count += s.Sum.Tablets
			if s.Sum.Tablets > 0 && s.Sum.Bytes <= 0 {
				t.Errorf("%+v", s.Sum)
			}
		}
		if count != len(tablets) {
			t.Errorf("servers have %d tablets, want %d", count, len(tablets))
		}
	}
}
