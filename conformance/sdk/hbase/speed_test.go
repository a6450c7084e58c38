package hbase

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/hrpc"

	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/engine/loopback"
)

var (
	calls   = flag.Int("speed.calls", 100_000, "how many puts, and gets, and times 100 scans, a turn of TestSpeed makes")
	turns   = flag.Int("speed.turns", 3, "how many turns each server gets")
	callers = flag.Int("speed.callers", 200, "how many goroutines call")
	rows    = flag.Int("speed.rows", 300_000, "how many rows there are; they are written first, and puts overwrite them")
	serving = flag.String("speed.args", "", "more flags of the server")
	heap    = flag.String("speed.heap", "", "HBase's -Xmx; empty is none given, so a quarter of the machine")
	alone   = flag.Bool("speed.alone", false, "measure the server without HBase")
)

// A side is one of the servers that are compared.
type side struct {
	name   string
	pid    int
	client gohbase.Client
	rates  map[string][]float64
	p99    map[string][]time.Duration
	cpu    map[string][]time.Duration // of the server, per call
	next   atomic.Int64
}

// TestSpeed measures a server and HBase in turns with the same client, gohbase:
// puts and gets of rows with values of 100 bytes, and scans of 1,000 rows. Both
// get as many calls, so that the faster one does not end up with more to read, and
// sync their logs before they answer. Their memory is read at the end.
func TestSpeed(t *testing.T) {
	bin := os.Getenv(target.BinaryEnv)
	if bin == "" {
		t.Skip(target.BinaryEnv + " is not set")
	}
	var sides []*side
	var at []string
	if !*alone {
		zk, pid := startHBase(t)
		sides, at = append(sides, &side{name: "HBase", pid: pid, client: gohbase.NewClient(zk)}), append(at, zk)
	}
	ours := loopback.Addr(t)
	s, err := target.Start(t.Context(), target.Process{Binary: bin, Dir: filepath.Join(t.TempDir(), "data"),
		Args: append([]string{"--emulator", "--hbase-listen", "127.0.0.1:0", "--hbase-zookeeper-listen", ours}, strings.Fields(*serving)...)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(10 * time.Second); err != nil {
			t.Error(err)
		}
	}()
	sides, at = append(sides, &side{name: "Trestle", pid: s.Pid, client: gohbase.NewClient(ours)}), append(at, ours)
	for i, at := range at {
		sides[i].rates, sides[i].p99, sides[i].cpu = map[string][]float64{}, map[string][]time.Duration{}, map[string][]time.Duration{}
		if err := table(t.Context(), at, "speed"); err != nil {
			t.Fatal(sides[i].name, err)
		}
		sides[i].run(t, "", *rows, sides[i].load)
		defer sides[i].client.Close()
	}
	for range *turns {
		for _, s := range sides {
			s.run(t, "put", *calls, s.put)
			s.run(t, "get", *calls, s.get)
			s.run(t, "scan of 1,000", *calls/100, s.scan)
		}
	}
	a := sides[len(sides)-1]
	for _, s := range sides {
		for _, op := range []string{"put", "get", "scan of 1,000"} {
			t.Logf("%-7s %-13s %8.0f/s p99 %-8v %v of the server's processor per call", s.name, op, median(s.rates[op]),
				median(s.p99[op]).Round(100*time.Microsecond), median(s.cpu[op]))
			if s != a {
				t.Logf("%-7s %-13s speed %.2f, processor %.2f", "ratio", op, median(a.rates[op])/median(s.rates[op]), float64(median(a.cpu[op]))/float64(median(s.cpu[op])))
			}
		}
		now, most := resident(t, s.pid)
		t.Logf("%-7s resident      %d MiB, at most %d MiB", s.name, now>>20, most>>20)
		if s != a {
			ours, oursMost := resident(t, a.pid)
			t.Logf("%-7s resident      %.2f, at most %.2f", "ratio", float64(ours)/float64(now), float64(oursMost)/float64(most))
		}
	}
}

func median[T float64 | time.Duration](of []T) T {
	s := slices.Sorted(slices.Values(of))
	return s[len(s)/2]
}

// processor returns the processor time that a process has had; 0 if that is not
// known here.
func processor(pid int) time.Duration {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The name in parentheses may have spaces; user and system time are the 12th
	// and 13th field behind it, in hundredths of a second.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 13 {
		return 0
	}
	var user, system int64
	_, _ = fmt.Sscan(f[11]+" "+f[12], &user, &system)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// resident returns how much memory a process has, and has had at most.
func resident(t *testing.T, pid int) (now, most int64) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip("no memory figures here: ", err)
	}
	read := func(field string) (kb int64) {
		if m := regexp.MustCompile(field + `:\s+(\d+)`).FindSubmatch(b); m != nil {
			_, _ = fmt.Sscan(string(m[1]), &kb)
		}
		return kb << 10
	}
	return read("VmRSS"), read("VmHWM")
}

// run makes n calls.
func (s *side) run(t *testing.T, name string, n int, call func(context.Context) error) {
	t.Helper()
	var wg sync.WaitGroup
	var done atomic.Int64
	start, used := time.Now(), processor(s.pid)
	took := make([][]time.Duration, *callers)
	for w := range *callers {
		wg.Go(func() {
			for done.Add(1) <= int64(n) {
				at := time.Now()
				if err := call(t.Context()); err != nil {
					t.Errorf("%s: %s: %v", s.name, name, err)
					return
				}
				took[w] = append(took[w], time.Since(at))
			}
		})
	}
	wg.Wait()
	all := slices.Concat(took...)
	if t.Failed() || len(all) == 0 {
		t.FailNow()
	}
	if name != "" {
		slices.Sort(all)
		s.rates[name] = append(s.rates[name], float64(len(all))/time.Since(start).Seconds())
		s.p99[name] = append(s.p99[name], all[len(all)*99/100])
		s.cpu[name] = append(s.cpu[name], (processor(s.pid)-used)/time.Duration(len(all)))
	}
}

var speedValue = bytes.Repeat([]byte("v"), 100)

// speedKey spreads rows evenly, in no order.
func speedKey(i int64) string { return fmt.Sprintf("r%09d", i*618_033_989%1_000_000_007) }

// load puts the next row, put one of those that are there.
func (s *side) load(ctx context.Context) error { return s.write(ctx, s.next.Add(1)) }
func (s *side) put(ctx context.Context) error  { return s.write(ctx, anyRow()) }

func anyRow() int64 { return 1 + rand.Int64N(int64(*rows)) }

func (s *side) write(ctx context.Context, i int64) error {
	p, err := hrpc.NewPutStr(ctx, "speed", speedKey(i), map[string]map[string][]byte{"f": {"q": speedValue}})
	if err == nil {
		_, err = s.client.Put(p)
	}
	return err
}

func (s *side) get(ctx context.Context) error {
	g, err := hrpc.NewGetStr(ctx, "speed", speedKey(anyRow()))
	if err != nil {
		return err
	}
	r, err := s.client.Get(g)
	if err == nil && (len(r.Cells) != 1 || !bytes.Equal(r.Cells[0].Value, speedValue)) {
		err = fmt.Errorf("%d cells", len(r.Cells))
	}
	return err
}

// scan reads 1,000 rows from a row that leaves as many behind it.
func (s *side) scan(ctx context.Context) error {
	from := fmt.Sprintf("r%09d", rand.Int64N(900_000_000))
	c, err := hrpc.NewScanRangeStr(ctx, "speed", from, "", hrpc.NumberOfRows(1000))
	if err != nil {
		return err
	}
	rows := s.client.Scan(c)
	n := 0
	for ; n < 1000; n++ {
		r, err := rows.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if len(r.Cells) != 1 || strings.Compare(string(r.Cells[0].Row), from) < 0 {
			return fmt.Errorf("scan from %s: row %q", from, r.Cells[0].Row)
		}
	}
	if n < 1000 {
		return fmt.Errorf("scan from %s: %d rows", from, n)
	}
	return rows.Close()
}
