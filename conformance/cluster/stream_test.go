package cluster

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

var (
	streamFor   = flag.Duration("cluster.stream", 15*time.Second, "how long TestStream changes a table that is streamed")
	streamKills = flag.Duration("cluster.streamkills", 5*time.Second, "how often TestStream kills a server")
	streamBeam  = flag.String("cluster.beam", "", "a directory of Beam's jars: a pipeline of Beam reads in TestStream, in place of `trestle stream`")
)

// A streamLine is what a reader takes of a line of `trestle stream`.
type streamLine struct {
	Row, Type  string
	Commit     time.Time
	Tiebreaker int32
	Mutations  []struct {
		Op, Family, Qualifier string
		Timestamp             int64 `json:"timestamp_micros"`
		Value                 string
		Int, Start, End       int64
	}
}

// idColumn is the column of f in which each write has an id of its own.
const idColumn = "id"

// A streamFile is what came out of `trestle stream`: the changes of a table.
type streamFile struct {
	records   int
	collected int
	at        map[string]int               // by id of a write: the record that it is in
	cells     map[string]map[string]string // what the changes make of an empty table, by row and cell
}

// readStream reads lines. An error says what no stream may have: a record twice, a write twice, or
// records of a row that are not in order.
func readStream(in io.Reader) (*streamFile, error) {
	f := &streamFile{at: map[string]int{}, cells: map[string]map[string]string{}}
	last := map[string]time.Time{}
	lines := bufio.NewReader(in)
	for {
		b, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(b) == 0 {
			return f, nil
		}
		if err != nil {
			return f, fmt.Errorf("line %d is not whole: %w", f.records+1, err)
		}
		var l streamLine
		if err := json.Unmarshal(b, &l); err != nil {
			return f, fmt.Errorf("line %d, %.100q: %w", f.records+1, b, err)
		}
		f.records++
		if !l.Commit.After(last[l.Row]) {
			return f, fmt.Errorf("line %d, row %q: commit %v after %v", f.records, l.Row, l.Commit, last[l.Row])
		}
		last[l.Row] = l.Commit
		if l.Type != "USER" {
			f.collected++
		}
		if err := f.apply(&l); err != nil {
			return f, fmt.Errorf("line %d, row %q: %w", f.records, l.Row, err)
		}
	}
}

func (f *streamFile) apply(l *streamLine) error {
	cells := f.cells[l.Row]
	if cells == nil {
		cells = map[string]string{}
		f.cells[l.Row] = cells
	}
	for _, m := range l.Mutations {
		column := m.Family + ":" + m.Qualifier + "@"
		at := column + fmt.Sprint(m.Timestamp)
		switch m.Op {
		case "SetCell":
			cells[at] = m.Value
			if m.Qualifier == idColumn {
				if n, again := f.at[m.Value]; again {
					return fmt.Errorf("write %s is in record %d too", m.Value, n)
				}
				f.at[m.Value] = f.records
			}
		case "AddToCell":
			n := m.Int
			if old := cells[at]; old != "" {
				n += int64(binary.BigEndian.Uint64([]byte(old)))
			}
			cells[at] = string(binary.BigEndian.AppendUint64(nil, uint64(n)))
		case "DeleteFromColumn":
			maps.DeleteFunc(cells, func(k, _ string) bool {
				var ts int64
				ofColumn := strings.HasPrefix(k, column)
				if ofColumn {
					_, _ = fmt.Sscan(k[len(column):], &ts)
				}
				return ofColumn && ts >= m.Start && (m.End == 0 || ts < m.End)
			})
		case "DeleteFromFamily":
			maps.DeleteFunc(cells, func(k, _ string) bool { return strings.HasPrefix(k, m.Family+":") })
		default:
			return fmt.Errorf("operation %q", m.Op)
		}
	}
	return nil
}

// missing tells which acknowledged write is not there. acked has the ids of each row in the order
// in which they were acknowledged, each before the next was sent.
func (f *streamFile) missing(acked map[string][]string) error {
	for row, ids := range acked {
		before := 0
		for _, id := range ids {
			n, ok := f.at[id]
			if !ok {
				return fmt.Errorf("row %q: write %s was acknowledged, and is not in the stream", row, id)
			}
			if n < before {
				return fmt.Errorf("row %q: write %s is record %d, the write before it record %d", row, id, n, before)
			}
			before = n
		}
	}
	return nil
}

// differs tells a cell that the table has and the changes do not lead to, or the other way round.
func (f *streamFile) differs(table map[string]map[string]string) error {
	for row := range maps.Keys(f.cells) {
		if !maps.Equal(f.cells[row], table[row]) {
			return fmt.Errorf("row %q: the stream leads to %d cells, the table has %d: %.300q, %.300q", row, len(f.cells[row]), len(table[row]), f.cells[row], table[row])
		}
	}
	for row := range table {
		if f.cells[row] == nil {
			return fmt.Errorf("row %q is in the table and not in the stream", row)
		}
	}
	return nil
}

// TestStreamMistakes: what a stream must not do is seen in the file.
func TestStreamMistakes(t *testing.T) {
	const set = `{"row":"r","type":"USER","commit":"2026-01-02T03:04:0%dZ","mutations":[{"op":"SetCell","family":"f","qualifier":"id","timestamp_micros":%d,"value":"%s"}]}` + "\n"
	one, two := fmt.Sprintf(set, 1, 1000, "a"), fmt.Sprintf(set, 2, 2000, "b")
	acked := map[string][]string{"r": {"a", "b"}}
	table := map[string]map[string]string{"r": {"f:id@1000": "a", "f:id@2000": "b"}}
	look := func(lines string) error {
		f, err := readStream(strings.NewReader(lines))
		if err == nil {
			err = f.missing(acked)
		}
		if err == nil {
			err = f.differs(table)
		}
		return err
	}
	if err := look(one + two); err != nil {
		t.Error(err)
	}
	for name, lines := range map[string]string{
		"a line is missing": one, "a line is twice": one + two + two, "lines in the wrong order": two + one, "half a line": one + two[:len(two)-5],
		"a write is twice":                 one + two + fmt.Sprintf(set, 3, 3000, "b"),
		"writes in the wrong order":        fmt.Sprintf(set, 1, 2000, "b") + fmt.Sprintf(set, 2, 1000, "a"),
		"another value":                    fmt.Sprintf(set, 1, 1000, "a") + fmt.Sprintf(set, 2, 3000, "b"),
		"a deletion of what is there":      one + two + `{"row":"r","type":"GARBAGE_COLLECTION","commit":"2026-01-02T03:04:09Z","mutations":[{"op":"DeleteFromColumn","family":"f","qualifier":"id","start":1000,"end":2000}]}` + "\n",
		"a deletion of the family":         one + two + `{"row":"r","type":"USER","commit":"2026-01-02T03:04:09Z","mutations":[{"op":"DeleteFromFamily","family":"f"}]}` + "\n",
		"an operation that does not exist": one + two + `{"row":"r","type":"USER","commit":"2026-01-02T03:04:09Z","mutations":[{"op":"DeleteFromRow"}]}` + "\n",
	} {
		if err := look(lines); err == nil {
			t.Errorf("%s: nothing is wrong", name)
		}
	}
}

// TestStream: what `trestle stream` writes to a file is what was acknowledged, once and in order,
// and leads to the table. Meanwhile tablets are split, merged and moved each second, and servers
// are killed. So is the reader, which goes on at its position.
func TestStream(t *testing.T) {
	c := start(t, Options{Store: *store})
	t.Logf("-cluster.seed=%d", *seed)
	r := rand.New(rand.NewPCG(*seed, 4))
	ctx := t.Context()
	addr := c.API(c.Gateway)
	plaintext := grpc.WithTransportCredentials(insecure.NewCredentials())
	if err := MakeInstance(ctx, addr, "project", "instance", plaintext); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(addr, plaintext)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	data, admin, err := Connect(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	err = admin.CreateTableFromConf(ctx, &bigtable.TableConf{TableID: "orders", SplitKeys: []string{"0250", "0500", "0750"}, ChangeStreamRetention: 24 * time.Hour,
		ColumnFamilies: map[string]bigtable.Family{"f": {GCPolicy: bigtable.MaxVersionsPolicy(2)}, "sum": {ValueType: bigtable.AggregateType{Input: bigtable.Int64Type{}, Aggregator: bigtable.SumAggregator{}}}}})
	if err != nil {
		t.Fatal(err)
	}
	var reader changeReader = newStreamReader(t, c.o.Trestle, addr)
	writers := &tableWriters{pause: time.Millisecond}
	if *streamBeam != "" {
		// Beam's runner for tests begins a stream anew after each 100 records.
		reader, writers.pause = newBeamReader(t, *streamBeam, addr, writers), 40*time.Millisecond
	}
	load, stop := context.WithTimeout(ctx, *streamFor)
	defer stop()
	var wg sync.WaitGroup
	for i := range writers.logs {
		r := rand.New(rand.NewPCG(*seed, 10+uint64(i)))
		wg.Go(func() { writers.run(load, bigtablepb.NewBigtableClient(conn), i, r) })
	}
	var did string
	operations := map[string]int{}
	wg.Go(func() {
		r := rand.New(rand.NewPCG(*seed, 5))
		for load.Err() == nil {
			did = operate(load, c, r)
			operations[strings.Fields(did)[0]]++
			wait(load, time.Second)
		}
	})
	runs := 0
	wg.Go(func() {
		r := rand.New(rand.NewPCG(*seed, 6))
		for ; load.Err() == nil; runs++ {
			reader.killed(load, between(r, time.Second, *streamKills))
		}
	})
	kills := 0
	for ; load.Err() == nil; kills++ {
		wait(load, *streamKills)
		victims := []*Process{pick(c.Servers, r)}
		if r.IntN(4) == 0 {
			if m, err := c.master(ctx); err == nil {
				victims = append(victims, m)
			}
		}
		if err = c.kill(ctx, r, victims...); err != nil {
			stop()
		}
	}
	wg.Wait() // the others report to t, which must not have ended
	if err != nil {
		t.Fatal(err)
	}
	acked := writers.acked()
	n, unknown := 0, 0
	for _, l := range writers.logs {
		n, unknown = n+l.n, unknown+l.unknown
	}
	// Garbage collection may remove something between the two looks.
	var f *streamFile
	for limit := time.Now().Add(10 * time.Minute); ; {
		end, cancel := context.WithTimeout(ctx, 2*time.Minute)
		complete := reader.upTo(end, time.Now().Add(100*time.Millisecond))
		missing := false
		if f, err = reader.read(); err == nil {
			err = f.missing(acked)
			missing = err != nil
		}
		if missing && !complete && time.Now().Before(limit) {
			cancel()
			continue
		}
		if err != nil {
			t.Fatalf("%v; the last operation was %s\n%s", err, did, c.why())
		}
		table, err := tableCells(end, data.Open("orders"))
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if err = f.differs(table); err == nil {
			break
		}
		if time.Now().After(limit) {
			t.Fatal(err)
		}
	}
	t.Logf("%v: %d acknowledged writes, %d of which the outcome is not known; %d records in %d runs of the reader, %d of garbage collection; %d kills; operations %v",
		*streamFor, n, unknown, f.records, runs, f.collected, kills, operations)
	if n == 0 || f.records < n || runs < 2 || kills == 0 {
		t.Error("nothing was tried")
	}
}

// A changeReader is a program that writes the changes of a table to a file.
type changeReader interface {
	// killed runs the program for a while, or until ctx ends, and kills it if it goes on where
	// it was killed.
	killed(ctx context.Context, d time.Duration)
	// upTo runs it on. complete says that all up to end is written, and not only some more.
	upTo(ctx context.Context, end time.Time) (complete bool)
	// read reads what is written.
	read() (*streamFile, error)
}

// A streamReader is `trestle stream`.
type streamReader struct {
	t       *testing.T
	program string
	args    []string
	out     string
}

func newStreamReader(t *testing.T, program, addr string) *streamReader {
	out := filepath.Join(t.TempDir(), "orders.json")
	return &streamReader{t: t, program: program, out: out,
		args: []string{"stream", "project/instance/orders", "--plaintext", "--server=" + addr, "--to=file:" + out, "--start=" + time.Now().UTC().Format(time.RFC3339Nano)}}
}

func (s *streamReader) killed(ctx context.Context, d time.Duration) {
	cmd := exec.Command(s.program, s.args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		s.t.Error(err)
		return
	}
	wait(ctx, d)
	_ = cmd.Process.Kill()
	if err := cmd.Wait(); cmd.ProcessState.Exited() {
		s.t.Errorf("trestle stream ended by itself: %v\n%s", err, stderr.String())
	}
}

func (s *streamReader) upTo(ctx context.Context, end time.Time) bool {
	s.t.Helper()
	cmd := exec.CommandContext(ctx, s.program, append(s.args[:len(s.args):len(s.args)], "--end="+end.UTC().Format(time.RFC3339Nano))...)
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("trestle stream up to %v: %v\n%s", end, err, out)
	}
	return true
}

func (s *streamReader) read() (*streamFile, error) {
	in, err := os.Open(s.out)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return readStream(in)
}

// tableWriters change a table, and note what became of it.
type tableWriters struct {
	pause time.Duration // of a writer, after each write
	logs  [4]writeLog
	mu    sync.RWMutex // locked by what must see no write; for reading, by each write
}

// A writeLog is what became of the writes of one writer.
type writeLog struct {
	acked      map[string][]string // ids, by row
	n, unknown int
}

// acked returns the ids of all acknowledged writes, by row. No writer writes meanwhile.
func (w *tableWriters) acked() map[string][]string {
	acked := map[string][]string{}
	for _, l := range w.logs {
		maps.Copy(acked, l.acked)
	}
	return acked
}

// run is writer i, and writes to the rows whose number leaves i of the number of writers. It sends
// each write once: what a client repeats may be there twice.
func (w *tableWriters) run(ctx context.Context, client bigtablepb.BigtableClient, i int, r *rand.Rand) {
	l, writers := &w.logs[i], len(w.logs)
	l.acked = map[string][]string{}
	for n := 1; ctx.Err() == nil; n++ {
		row := fmt.Sprintf("%04d", r.IntN(1000/writers)*writers+i)
		id := fmt.Sprintf("%d-%d", i, n)
		set := func(qualifier string) *bigtablepb.Mutation {
			return &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{FamilyName: "f", ColumnQualifier: []byte(qualifier), TimestampMicros: int64(n%100) * 1000, Value: []byte(id)}}}
		}
		req := &bigtablepb.MutateRowRequest{TableName: "projects/project/instances/instance/tables/orders", RowKey: []byte(row)}
		switch r.IntN(16) {
		case 0:
			req.Mutations = append(req.Mutations, &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_DeleteFromRow_{DeleteFromRow: &bigtablepb.Mutation_DeleteFromRow{}}})
		case 1:
			req.Mutations = append(req.Mutations, &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_DeleteFromFamily_{DeleteFromFamily: &bigtablepb.Mutation_DeleteFromFamily{FamilyName: "sum"}}})
		case 2:
			req.Mutations = append(req.Mutations, &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_DeleteFromColumn_{DeleteFromColumn: &bigtablepb.Mutation_DeleteFromColumn{FamilyName: "f", ColumnQualifier: []byte(idColumn),
				TimeRange: &bigtablepb.TimestampRange{StartTimestampMicros: 10_000, EndTimestampMicros: int64(11+r.IntN(89)) * 1000}}}})
		case 3, 4:
			req.Mutations = append(req.Mutations, &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_AddToCell_{AddToCell: &bigtablepb.Mutation_AddToCell{FamilyName: "sum",
				ColumnQualifier: &bigtablepb.Value{Kind: &bigtablepb.Value_RawValue{RawValue: []byte("n")}}, Timestamp: &bigtablepb.Value{Kind: &bigtablepb.Value_RawTimestampMicros{}}, Input: &bigtablepb.Value{Kind: &bigtablepb.Value_IntValue{IntValue: int64(n)}}}}})
		case 5, 6:
			req.Mutations = append(req.Mutations, set("other"))
		}
		req.Mutations = append(req.Mutations, set(idColumn))
		w.mu.RLock()
		octx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		_, err := client.MutateRow(octx, req)
		cancel()
		if err == nil {
			l.acked[row] = append(l.acked[row], id)
			l.n++
		} else {
			l.unknown++
		}
		w.mu.RUnlock()
		wait(ctx, w.pause)
	}
}

// tableCells returns all cells of a table, by row.
func tableCells(ctx context.Context, t *bigtable.Table) (map[string]map[string]string, error) {
	out := map[string]map[string]string{}
	err := t.ReadRows(ctx, bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		cells := map[string]string{}
		for _, items := range r {
			for _, i := range items {
				cells[fmt.Sprintf("%s@%d", i.Column, i.Timestamp)] = string(i.Value)
			}
		}
		out[r.Key()] = cells
		return true
	})
	return out, err
}
