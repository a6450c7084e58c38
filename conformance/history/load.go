package history

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/anishathalye/porcupine"
	"google.golang.org/grpc"
)

// LoadOptions configures StartLoad.
type LoadOptions struct {
	// Addrs are servers of one cluster: clients are spread over them. Calls fail
	// while theirs are down.
	Addrs []string
	// Dial are options for connections. Without them they are in plaintext.
	Dial []grpc.DialOption
	// Suffix keeps the tables of loads against one server apart.
	Suffix string
	Seed   uint64
	// Clients of each workload. Zero means 4.
	Clients int
	// Tablets of each table. Zero means 6.
	Tablets int
	// Pause of a client between operations. Zero means 5 ms: the load is there to
	// find something wrong, not to fill a processor.
	Pause time.Duration
	// Timeout of one operation. Zero means 10 s.
	Timeout time.Duration
	// Log takes what was wrong, as soon as it is known.
	Log func(format string, args ...any)
}

// A Load runs until it is stopped, whatever happens to the server meanwhile:
//
//   - rows: operations on single rows, whose history porcupine judges;
//   - bank: moves of money within a row, in each tablet, whose sum stays;
//   - list: nodes that point to acknowledged nodes, of which none may be missing;
//   - scan: a table that nobody changes, whose scans all give the same rows.
//
// Check says what was wrong since it was asked last.
type Load struct {
	o      LoadOptions
	conns  []*cluster
	cancel context.CancelFunc
	wg     sync.WaitGroup

	// generation of rows in use. A client of rows is in one operation at a time,
	// whose generation it has written down.
	generation atomic.Int64
	within     []atomic.Int64

	banks    []*account
	scanHash uint64 // of the table that stays as it is

	mu         sync.Mutex
	ops        []porcupine.Operation
	nodes      map[string]string // acknowledged, with what they point to
	violations []string
	first      error // of calls, since Failed was called

	progress [len(workloads)][]atomic.Int64 // answers, by workload and client

	acked, unknown, reads, scans, failed, judged atomic.Int64
}

// A LoadReport counts what a Load did.
type LoadReport struct {
	// Acked are changes that were acknowledged, Unknown those whose outcome the
	// client was not told.
	Acked, Unknown int64
	// Reads are reads of single rows that were answered, Scans those of whole
	// tables.
	Reads, Scans int64
	// Failed counts calls that came back with an error, however often the client
	// library had tried.
	Failed int64
	// Judged are operations that porcupine has judged, Nodes those of the list.
	Judged, Nodes int64
	// Violations are what should never be, the first few.
	Violations []string
}

// An account is one bank: a row. Its moves are counted in it.
type account struct {
	row string

	mu           sync.Mutex
	acked, tried int64 // moves
}

const (
	workRows = iota
	workBank
	workList
	workScan
)

var workloads = [...]string{"rows", "bank", "list", "scan"}

const (
	perRow   = 40   // operations on a row before the next takes its place
	hotRows  = 6    // rows in use at a time
	nodes    = 20   // of the list, written at once
	scanRows = 2000 // of the table that stays as it is
)

// StartLoad makes the tables and begins.
func StartLoad(ctx context.Context, o LoadOptions) (*Load, error) {
	o.Clients, o.Tablets = cmp.Or(o.Clients, 4), cmp.Or(o.Tablets, 6)
	o.Pause, o.Timeout = cmp.Or(o.Pause, 5*time.Millisecond), cmp.Or(o.Timeout, 10*time.Second)
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	l := &Load{o: o, within: make([]atomic.Int64, o.Clients), nodes: map[string]string{}}
	for i := range l.progress {
		l.progress[i] = make([]atomic.Int64, o.Clients)
	}
	dialing := ctx
	ctx, l.cancel = context.WithCancel(ctx)
	for _, addr := range o.Addrs {
		c, err := dial(dialing, addr, o.Dial...)
		if err != nil {
			l.close()
			return nil, err
		}
		l.conns = append(l.conns, c)
	}
	if err := l.prepare(ctx); err != nil {
		l.close()
		return nil, err
	}
	for id := range o.Clients {
		for i, run := range []func(context.Context, int, *rand.Rand){l.runRows, l.runBank, l.runList, l.runScan} {
			l.wg.Go(func() { run(ctx, id, rand.New(rand.NewPCG(o.Seed, uint64(i*1000+id)))) })
		}
	}
	return l, nil
}

func (l *Load) table(workload int) string { return workloads[workload] + l.o.Suffix }

// at returns a table through the server of a client.
func (l *Load) at(client, workload int) *bigtable.Table {
	return l.conns[client%len(l.conns)].data.Open(l.table(workload))
}

func (l *Load) prepare(ctx context.Context) error {
	var splits []string
	for i := 1; i < l.o.Tablets; i++ {
		splits = append(splits, fmt.Sprintf("%02x", i*256/l.o.Tablets))
	}
	for i := range workloads {
		conf := &bigtable.TableConf{TableID: l.table(i), SplitKeys: splits, Families: map[string]bigtable.GCPolicy{"f": bigtable.NoGcPolicy(), "g": bigtable.NoGcPolicy()}}
		if err := l.conns[0].admin.CreateTableFromConf(ctx, conf); err != nil {
			return fmt.Errorf("create table %s: %w", l.table(i), err)
		}
	}
	for i := range l.o.Tablets {
		l.banks = append(l.banks, &account{row: fmt.Sprintf("%02x-bank", (i*256+128)/l.o.Tablets)})
	}
	r := rand.New(rand.NewPCG(l.o.Seed, math.MaxUint64))
	var keys []string
	var muts []*bigtable.Mutation
	for i := range scanRows {
		m := bigtable.NewMutation()
		m.Set("f", "v", bigtable.Timestamp(i)*1000, []byte(strings.Repeat(fmt.Sprintf("%x", r.Uint64()), 1+r.IntN(20))))
		m.Set("g", "v", bigtable.Timestamp(i)*1000, []byte(fmt.Sprint(i)))
		keys, muts = append(keys, fmt.Sprintf("%016x", r.Uint64())), append(muts, m)
	}
	if errs, err := l.at(0, workScan).ApplyBulk(ctx, keys, muts); err != nil || len(errs) > 0 {
		return fmt.Errorf("fill a table: %w", errors.Join(append(errs, err)...))
	}
	var err error
	l.scanHash, err = l.scan(ctx, 0, false)
	return err
}

// do makes one call of a workload, once if it is limited, and counts it.
func (l *Load) do(ctx context.Context, workload, client int, limited bool, call func(context.Context) error) error {
	octx := ctx
	if limited {
		octx = once(ctx)
	}
	octx, cancel := context.WithTimeout(octx, l.o.Timeout)
	defer cancel()
	err := call(octx)
	if err == nil {
		l.progress[workload][client].Add(1)
		return nil
	}
	if ctx.Err() != nil {
		return err // we were stopped
	}
	l.failed.Add(1)
	l.mu.Lock()
	if l.first == nil {
		l.first = fmt.Errorf("%s: %w", workloads[workload], err)
	}
	l.mu.Unlock()
	return err
}

// rest is the pause of a client, longer after an error. It returns whether to
// go on.
func (l *Load) rest(ctx context.Context, err error, pauses int) bool {
	d := time.Duration(pauses) * l.o.Pause
	if err != nil {
		d = max(d, 50*time.Millisecond)
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

func (l *Load) violation(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	l.o.Log("VIOLATION: %s", text)
	if len(l.violations) < 20 {
		l.violations = append(l.violations, text)
	}
}

// rowOf returns the i-th row of a generation: they are spread over the tablets.
func rowOf(generation int64, i int) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%d/%d", generation, i)
	return fmt.Sprintf("%02x-%d-%d", byte(h.Sum32()>>8), generation, i)
}

func (l *Load) runRows(ctx context.Context, id int, r *rand.Rand) {
	w := rowClient{table: l.at(id, workRows), rand: r}
	for n := 0; ; n++ {
		g := l.generation.Load()
		for l.within[id].Store(g + 1); l.generation.Load() != g; l.within[id].Store(g + 1) {
			g = l.generation.Load()
		}
		l.mu.Lock()
		turn := len(l.ops) / (perRow * hotRows)
		l.mu.Unlock()
		in := w.draw(rowOf(g, turn*hotRows+r.IntN(hotRows)), fmt.Sprintf("%d.%d", id, n))
		err := l.operation(ctx, id, &w, in)
		l.within[id].Store(0)
		if !l.rest(ctx, err, 1) {
			return
		}
	}
}

// began is the zero of the clock of histories.
var began = time.Now()

// operation does in and writes down what came of it.
func (l *Load) operation(ctx context.Context, id int, w *rowClient, in input) error {
	var answer output
	call := time.Since(began).Nanoseconds()
	err := l.do(ctx, workRows, id, true, func(ctx context.Context) (err error) {
		answer, err = w.do(ctx, in)
		return err
	})
	op := porcupine.Operation{ClientId: id, Input: in, Call: call, Output: answer, Return: time.Since(began).Nanoseconds()}
	switch {
	case err == nil && in.action == read:
		l.reads.Add(1)
	case err == nil:
		l.acked.Add(1)
	case errors.Is(err, errShape):
		l.violation("%v", err)
		return err
	case in.action == read || definite(err):
		return err
	default:
		l.unknown.Add(1)
		op.Output, op.Return = output{unknown: true}, math.MaxInt64
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops = append(l.ops, op)
	return err
}

// judge retires the rows in use, reads each a last time, and asks porcupine.
func (l *Load) judge(ctx context.Context) error {
	old := l.generation.Add(1)
	// Nobody is with the old rows any more when all have been seen elsewhere.
	for id := range l.within {
		for g := l.within[id].Load(); g != 0 && g <= old; g = l.within[id].Load() {
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	l.mu.Lock()
	ops := slices.Clone(l.ops)
	l.ops = nil
	l.mu.Unlock()
	mine := func(op porcupine.Operation) string { return op.Input.(input).key }
	var keys []string
	seen := map[string]bool{}
	var now, later []porcupine.Operation
	for _, op := range ops {
		var g int64
		if _, err := fmt.Sscanf(mine(op)[3:], "%d-", &g); err != nil {
			return err
		}
		if g >= old {
			later = append(later, op) // a quick one, of the new rows
			continue
		}
		now = append(now, op)
		if !seen[mine(op)] {
			seen[mine(op)] = true
			keys = append(keys, mine(op))
		}
	}
	for i, key := range keys {
		w := rowClient{table: l.at(i, workRows)}
		in := input{key: key, action: read}
		call := time.Since(began).Nanoseconds()
		answer, err := w.do(ctx, in)
		if errors.Is(err, errShape) {
			l.violation("%v", err)
		} else if err != nil {
			return fmt.Errorf("last read of row %s: %w", key, err)
		}
		now = append(now, porcupine.Operation{ClientId: l.o.Clients, Input: in, Call: call, Output: answer, Return: time.Since(began).Nanoseconds()})
	}
	l.mu.Lock()
	l.ops = append(l.ops, later...)
	l.mu.Unlock()
	l.judged.Add(int64(len(now)))
	if result := porcupine.CheckOperationsTimeout(Model, now, 5*time.Minute); result != porcupine.Ok {
		for _, part := range Model.Partition(now) {
			if r := porcupine.CheckOperationsTimeout(Model, part, 5*time.Minute); r != porcupine.Ok {
				slices.SortFunc(part, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
				var b strings.Builder
				for _, op := range part {
					fmt.Fprintf(&b, "\n  %d [%.3f, %.3f] %s", op.ClientId, float64(op.Call)/1e9, float64(op.Return)/1e9, Model.DescribeOperation(op.Input, op.Output))
				}
				l.violation("the history of row %s is not linearizable (%v):%s", mine(part[0]), r, b.String())
			}
		}
	}
	return nil
}

func (l *Load) runBank(ctx context.Context, id int, r *rand.Rand) {
	t := l.at(id, workBank)
	for {
		b := l.banks[r.IntN(len(l.banks))]
		var err error
		if r.IntN(3) > 0 {
			m := bigtable.NewReadModifyWrite()
			n := r.Int64N(100)
			m.Increment("f", fmt.Sprint(r.IntN(4)), -n)
			m.Increment("g", fmt.Sprint(r.IntN(4)), n)
			m.Increment("g", "moves", 1)
			b.mu.Lock()
			b.tried++
			b.mu.Unlock()
			err = l.do(ctx, workBank, id, true, func(ctx context.Context) error {
				_, err := t.ApplyReadModifyWrite(ctx, b.row, m)
				return err
			})
			if err == nil {
				b.mu.Lock()
				b.acked++
				b.mu.Unlock()
				l.acked.Add(1)
			} else {
				l.unknown.Add(1)
			}
		} else {
			err = l.look(ctx, id, b)
		}
		if !l.rest(ctx, err, 1) {
			return
		}
	}
}

// look reads a bank and counts its money and its moves.
func (l *Load) look(ctx context.Context, id int, b *account) error {
	b.mu.Lock()
	least := b.acked
	b.mu.Unlock()
	var row bigtable.Row
	err := l.do(ctx, workBank, id, false, func(ctx context.Context) (err error) {
		row, err = l.at(id, workBank).ReadRow(ctx, b.row, bigtable.RowFilter(bigtable.LatestNFilter(1)))
		return err
	})
	if err != nil {
		return err
	}
	l.reads.Add(1)
	b.mu.Lock()
	most := b.tried
	b.mu.Unlock()
	var sum, moves int64
	for _, items := range row {
		for _, it := range items {
			if v := int64(binary.BigEndian.Uint64(it.Value)); it.Column == "g:moves" {
				moves = v
			} else {
				sum += v
			}
		}
	}
	if sum != 0 {
		l.violation("the row %s of the bank is torn: its accounts sum to %d", b.row, sum)
	}
	if moves < least || moves > most {
		l.violation("the bank %s has %d moves: %d were acknowledged before, %d tried", b.row, moves, least, most)
	}
	return nil
}

// runList writes nodes, each batch until all of it is acknowledged, that point
// to those of the batch before.
func (l *Load) runList(ctx context.Context, id int, r *rand.Rand) {
	t := l.at(id, workList)
	last := make([]string, nodes)
	for {
		keys, muts := make([]string, nodes), make([]*bigtable.Mutation, nodes)
		for i := range keys {
			keys[i] = fmt.Sprintf("%016x", r.Uint64())
			muts[i] = bigtable.NewMutation()
			muts[i].Set("f", "prev", 1000, []byte(last[i]))
		}
		for todo, do := keys, muts; len(todo) > 0; {
			var errs []error
			err := l.do(ctx, workList, id, false, func(ctx context.Context) (err error) {
				if errs, err = t.ApplyBulk(ctx, todo, do); err == nil && len(errs) > 0 {
					err = errors.Join(errs...)
				}
				return err
			})
			var again []string
			var what []*bigtable.Mutation
			l.mu.Lock()
			for i, k := range todo {
				if err != nil && (len(errs) != len(todo) || errs[i] != nil) {
					again, what = append(again, k), append(what, do[i])
				} else {
					l.nodes[k] = last[slices.Index(keys, k)]
					l.acked.Add(1)
				}
			}
			l.mu.Unlock()
			todo, do = again, what
			if !l.rest(ctx, err, nodes) {
				return
			}
		}
		last = keys
	}
}

// checkList scans the list through one server: every node that was acknowledged
// before is there, as it was written, and so, if nobody writes, is every node
// that another points to. (A scan is not of one instant: it may find a node and
// have passed the place of the one before it, which was written meanwhile.)
func (l *Load) checkList(ctx context.Context, client int, quiet bool) error {
	l.mu.Lock()
	want := make(map[string]string, len(l.nodes))
	for k, v := range l.nodes {
		want[k] = v
	}
	l.mu.Unlock()
	var last string
	found, referenced := map[string]bool{}, map[string]bool{}
	err := l.at(client, workList).ReadRows(ctx, bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		k := r.Key()
		if k <= last {
			l.violation("a scan of the list gave %s after %s", k, last)
		}
		last, found[k] = k, true
		if len(r["f"]) != 1 {
			l.violation("node %s has %d cells", k, len(r["f"]))
			return true
		}
		prev := string(r["f"][0].Value)
		if prev != "" {
			referenced[prev] = true
		}
		if w, ok := want[k]; ok && w != prev {
			l.violation("node %s points to %q, written was %q", k, prev, w)
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("scan the list: %w", err)
	}
	for k := range want {
		if !found[k] {
			l.violation("node %s was acknowledged and is lost", k)
		}
	}
	for k := range referenced {
		if quiet && !found[k] {
			l.violation("node %s is pointed to and is lost", k)
		}
	}
	return nil
}

func (l *Load) runScan(ctx context.Context, id int, r *rand.Rand) {
	for {
		var got uint64
		err := l.do(ctx, workScan, id, false, func(ctx context.Context) (err error) {
			got, err = l.scan(ctx, id, r.IntN(4) == 0)
			return err
		})
		if err == nil {
			l.scans.Add(1)
			if got != l.scanHash {
				l.violation("a scan has hash %x instead of %x", got, l.scanHash)
			}
		}
		if !l.rest(ctx, err, scanRows/50) {
			return
		}
	}
}

// scan returns the hash of all rows of the table that stays as it is, in
// ascending order.
func (l *Load) scan(ctx context.Context, client int, reversed bool) (uint64, error) {
	var rows [][]byte
	opts := []bigtable.ReadOption{}
	if reversed {
		opts = append(opts, bigtable.ReverseScan())
	}
	err := l.at(client, workScan).ReadRows(ctx, bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		var b bytes.Buffer
		for _, f := range []string{"f", "g"} {
			for _, it := range r[f] {
				fmt.Fprintf(&b, "%s %s %d %q\n", it.Row, it.Column, it.Timestamp, it.Value)
			}
		}
		rows = append(rows, b.Bytes())
		return true
	}, opts...)
	if err != nil {
		return 0, err
	}
	if reversed {
		slices.Reverse(rows)
	}
	h := fnv.New64a()
	for _, r := range rows {
		h.Write(r)
	}
	return h.Sum64(), nil
}

// Failed returns how many calls of clients have failed, and the first that did
// since the last call of Failed.
func (l *Load) Failed() (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.first
	l.first = nil
	return l.failed.Load(), err
}

// Progress waits until every client of every workload has been answered after
// the call.
func (l *Load) Progress(ctx context.Context) error {
	var before [len(workloads)][]int64
	for w := range l.progress {
		for i := range l.progress[w] {
			before[w] = append(before[w], l.progress[w][i].Load())
		}
	}
	for w := range l.progress {
		for i := range l.progress[w] {
			// Two, as the first may have been under way.
			for l.progress[w][i].Load() < before[w][i]+2 {
				select {
				case <-time.After(5 * time.Millisecond):
				case <-ctx.Done():
					l.mu.Lock()
					defer l.mu.Unlock()
					return fmt.Errorf("client %d of %s does not get on: %w; the last error: %w", i, workloads[w], ctx.Err(), l.first)
				}
			}
		}
	}
	return nil
}

// Check compares what was answered so far, and what all servers have now, with
// what may be. It returns an error if it could not: the servers must serve.
func (l *Load) Check(ctx context.Context) (*LoadReport, error) { return l.check(ctx, false) }

func (l *Load) check(ctx context.Context, quiet bool) (*LoadReport, error) {
	errs := []error{l.judge(ctx), l.checkList(ctx, int(l.generation.Load()), quiet)}
	for i := range l.conns {
		for _, b := range l.banks {
			errs = append(errs, l.look(ctx, i%l.o.Clients, b))
		}
		got, err := l.scan(ctx, i, false)
		if errs = append(errs, err); err == nil && got != l.scanHash {
			l.violation("a scan through %s has hash %x instead of %x", l.o.Addrs[i], got, l.scanHash)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &LoadReport{Acked: l.acked.Load(), Unknown: l.unknown.Load(), Reads: l.reads.Load(), Scans: l.scans.Load(), Failed: l.failed.Load(),
		Judged: l.judged.Load(), Nodes: int64(len(l.nodes)), Violations: l.violations}
	l.violations = nil
	return r, errors.Join(errs...)
}

// Stop ends all clients, and checks a last time.
func (l *Load) Stop(ctx context.Context) (*LoadReport, error) {
	l.cancel()
	l.wg.Wait()
	r, err := l.check(ctx, true)
	l.close()
	return r, err
}

func (l *Load) close() {
	l.cancel()
	l.wg.Wait()
	for _, c := range l.conns {
		_ = c.close()
	}
}
