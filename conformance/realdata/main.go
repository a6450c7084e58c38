package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"cloud.google.com/go/bigtable"
	"golang.org/x/text/unicode/runenames"

	conformance "github.com/trestledb/trestle/conformance/cluster"
	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/engine/loopback"
)

const (
	project  = "unicode"
	instance = "ucd"
	stamp    = bigtable.Timestamp(1_000_000_000_000) // of every cell
)

func main() {
	conformance.Main()
	binary := flag.String("trestle", "bin/trestle", "the binary to run")
	cbt := flag.String("cbt", "cbt", "the cbt CLI; empty leaves it out")
	rows := flag.Int("rows", 1_000_000, "load at least so many rows")
	dir := flag.String("dir", "", "data directory; empty means a temporary one")
	python := flag.String("python", "python3", "the Python whose SQLite answers the same SQL; empty leaves it out")
	kills := flag.Int("kills", 1, "how often to kill the server")
	cluster := flag.Bool("cluster", target.OnCluster(), "run a cluster of processes, all of which are killed at once")
	transfer := flag.String("transfer", conformance.Directory, "where the store of a cluster is that adopts the directory, and releases another: directory, memory (S3), the path of a MinIO; empty leaves it out")
	beam := flag.String("beam", "", "a directory of Beam's jars: its connector reads the changes while rows are loaded")
	flag.Parse()
	if err := run(*binary, *cbt, *python, *dir, *transfer, *beam, *rows, *kills, *cluster); err != nil {
		fmt.Fprintln(os.Stderr, "realdata:", err)
		os.Exit(1)
	}
}

// A character is one code point with its properties.
type character struct {
	code                   rune
	name, category, script string
}

// characters returns the assigned code points that have names of their own or
// belong to a script, in ascending order.
func characters() []character {
	tables := func(m map[string]*unicode.RangeTable, skip func(string) bool) func(rune) string {
		names := make([]string, 0, len(m))
		for n := range m {
			if !skip(n) {
				names = append(names, n)
			}
		}
		slices.Sort(names)
		last := ""
		return func(r rune) string {
			if last != "" && unicode.Is(m[last], r) {
				return last
			}
			for _, n := range names {
				if unicode.Is(m[n], r) {
					last = n
					return n
				}
			}
			return ""
		}
	}
	category := tables(unicode.Categories, func(n string) bool { return len(n) != 2 || n == "LC" || n == "Cn" })
	script := tables(unicode.Scripts, func(string) bool { return false })
	var out []character
	for r := rune(0); r <= unicode.MaxRune; r++ {
		c := category(r)
		if c == "" || c == "Cs" || c == "Co" {
			continue // unassigned, surrogate, private
		}
		s := script(r)
		if s == "" {
			s = "Unknown"
		}
		out = append(out, character{r, runenames.Name(r), c, s})
	}
	return out
}

func (c *character) key(copy int) string { return fmt.Sprintf("%s#%05X#%02d", c.script, c.code, copy) }

func (c *character) utf8() []byte { return utf8.AppendRune(nil, c.code) }

func (c *character) utf16() []byte {
	var b []byte
	for _, u := range utf16.AppendRune(nil, c.code) {
		b = binary.BigEndian.AppendUint16(b, u)
	}
	return b
}

type bench struct {
	chars  []character
	copies int
	dir    string
	binary string
	// cluster says that the server is one of a cluster.
	cluster bool
	server  *target.Server
	client  *bigtable.Client
	admin   *bigtable.AdminClient
	table   *bigtable.Table
	// host has the address http of the server's HTTP.
	host *loopback.Host
	http string
}

func run(bin, cbt, python, dir, transfer, beam string, rows, kills int, cluster bool) (err error) {
	ctx := context.Background()
	if dir == "" {
		if dir, err = os.MkdirTemp("", "realdata"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		dir = filepath.Join(dir, "data")
	}
	b := &bench{chars: characters(), dir: dir, binary: bin, cluster: cluster}
	b.copies = (rows + len(b.chars) - 1) / len(b.chars)
	fmt.Printf("Unicode Character Database %s: %d code points x %d copies = %d rows, %d cells\n",
		unicode.Version, len(b.chars), b.copies, b.rows(), 5*b.rows())
	if b.host, err = loopback.Take(); err != nil {
		return err
	}
	defer b.host.Close()
	if err := b.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	conf := &bigtable.TableConf{TableID: "ucd",
		Families: map[string]bigtable.GCPolicy{"id": bigtable.MaxVersionsPolicy(1), "prop": bigtable.NoGcPolicy(), "enc": bigtable.NoGcPolicy(),
			"brief": bigtable.MaxAgePolicy(markAge)},
		SplitKeys: []string{"Common", "Han", "Han#20000", "Hangul", "Latin"}}
	load := b.load
	if beam != "" {
		conf.ChangeStreamRetention = 24 * time.Hour
		load = func(ctx context.Context) error { return b.loadWithBeam(ctx, beam) }
	}
	if err := b.admin.CreateTableFromConf(ctx, conf); err != nil {
		return err
	}
	if err := b.step("load with the Go client", load); err != nil {
		return err
	}
	want := b.hash()
	check := func(ctx context.Context) error { return b.verify(ctx, want) }
	if err := b.step("read everything back", check); err != nil {
		return err
	}
	if err := b.step("filters, ranges, point reads", b.queries); err != nil {
		return err
	}
	if err := b.step("three materialized views", b.createViews); err != nil {
		return err
	}
	if err := b.step("the views, compared", b.checkViews); err != nil {
		return err
	}
	if err := b.step("the views follow changes", b.followed); err != nil {
		return err
	}
	if python != "" {
		if err := b.step("SQL, compared with SQLite", func(ctx context.Context) error { return b.sql(ctx, python) }); err != nil {
			return err
		}
	}
	for i := range kills {
		if err := b.step(fmt.Sprintf("kill -9 under load (%d)", i+1), b.kill); err != nil {
			return err
		}
		if err := b.step("the views, compared", b.checkViews); err != nil {
			return err
		}
		if err := b.step("read everything back", check); err != nil {
			return err
		}
	}
	if err := b.step("filters, ranges, point reads", b.queries); err != nil {
		return err
	}
	if transfer != "" && !cluster {
		if err := b.step("cluster adopt, release", func(ctx context.Context) error { return b.transfer(ctx, transfer, want) }); err != nil {
			return err
		}
		if err := b.step("read everything back", check); err != nil {
			return err
		}
		if err := b.step("the views, compared", b.checkViews); err != nil {
			return err
		}
	}
	if cbt != "" {
		if _, err := exec.LookPath(cbt); err != nil {
			fmt.Printf("cbt import: left out, %v\n", err)
			cbt = ""
		}
	}
	if cbt != "" {
		if err := b.step("cbt import of the same rows", func(ctx context.Context) error { return b.cbtImport(ctx, cbt) }); err != nil {
			return err
		}
		b.table = b.client.Open("imported")
		if err := b.step("read the import back", check); err != nil {
			return err
		}
	}
	if b.server.Cluster == nil {
		return nil
	}
	return b.step("trestle check --online --blocks", func(ctx context.Context) error {
		out, err := b.server.Cluster.Check(ctx)
		fmt.Printf("  %s\n", lastLine([]byte(out)))
		return err
	})
}

func (b *bench) rows() int { return len(b.chars) * b.copies }

func (b *bench) step(what string, do func(context.Context) error) error {
	start := time.Now()
	if err := do(context.Background()); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	d := time.Since(start)
	fmt.Printf("%-32s %8.2f s\n", what, d.Seconds())
	return nil
}

func (b *bench) start(ctx context.Context) (err error) {
	if b.http, err = b.host.Addr(); err != nil {
		return err
	}
	if b.server, err = target.Start(ctx, target.Process{Binary: b.binary, Dir: b.dir, HTTP: b.http, Args: []string{"--emulator"}, Cluster: b.cluster, TTL: 3 * time.Second}); err != nil {
		return err
	}
	if b.server.Cluster != nil {
		b.http = b.server.Cluster.HTTP[0]
	}
	return b.dial(ctx, b.server.Addr)
}

func (b *bench) stop() error {
	if b.server == nil {
		return nil // it did not start again
	}
	b.client.Close()
	b.admin.Close()
	if err := b.server.Stop(time.Minute); err != nil {
		return fmt.Errorf("stop the server: %w\n%s", err, b.server.Log())
	}
	return nil
}

// each calls f for every row, from several goroutines, in batches.
func (b *bench) each(f func(keys []string, chars []*character) error) error {
	const batch, workers = 500, 8
	type part struct{ copy, from int }
	parts := make(chan part)
	go func() {
		defer close(parts)
		for c := range b.copies {
			for i := 0; i < len(b.chars); i += batch {
				parts <- part{c, i}
			}
		}
	}()
	errs := make(chan error, workers)
	for range workers {
		go func() {
			var err error
			for p := range parts {
				if err != nil {
					continue // drain
				}
				var keys []string
				var chars []*character
				for i := p.from; i < min(p.from+batch, len(b.chars)); i++ {
					keys = append(keys, b.chars[i].key(p.copy))
					chars = append(chars, &b.chars[i])
				}
				err = f(keys, chars)
			}
			errs <- err
		}()
	}
	var first error
	for range workers {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (b *bench) load(ctx context.Context) error {
	start := time.Now()
	err := b.each(func(keys []string, chars []*character) error {
		muts := make([]*bigtable.Mutation, len(keys))
		for i, c := range chars {
			m := bigtable.NewMutation()
			m.Set("id", "name", stamp, []byte(c.name))
			m.Set("prop", "category", stamp, []byte(c.category))
			m.Set("prop", "script", stamp, []byte(c.script))
			m.Set("enc", "utf8", stamp, c.utf8())
			m.Set("enc", "utf16", stamp, c.utf16())
			muts[i] = m
		}
		failed, err := b.table.ApplyBulk(ctx, keys, muts)
		for _, e := range failed {
			if e != nil {
				return e
			}
		}
		return err
	})
	fmt.Printf("  %.0f rows/s\n", float64(b.rows())/time.Since(start).Seconds())
	return err
}

// hash is that of all rows as verify sees them.
func (b *bench) hash() uint64 {
	var sum uint64
	for i := range b.chars {
		c := &b.chars[i]
		for n := range b.copies {
			sum += rowHash(c.key(n), c.name, c.category, c.script, c.utf8(), c.utf16())
		}
	}
	return sum
}

func rowHash(key, name, category, script string, utf8, utf16 []byte) uint64 {
	h := fnv.New64a()
	for _, s := range [][]byte{[]byte(key), []byte(name), []byte(category), []byte(script), utf8, utf16} {
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(s))))
		_, _ = h.Write(s)
	}
	return h.Sum64()
}

// verify scans the whole table and compares it with what was loaded: order,
// number of rows, and a hash of every byte.
func (b *bench) verify(ctx context.Context, want uint64) error {
	start := time.Now()
	var sum uint64
	n, last := 0, ""
	var bad error
	err := b.table.ReadRows(ctx, bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
		if r.Key() <= last {
			bad = fmt.Errorf("row %q follows %q", r.Key(), last)
			return false
		}
		last = r.Key()
		if len(r["id"]) != 1 || len(r["prop"]) != 2 || len(r["enc"]) != 2 {
			bad = fmt.Errorf("row %q is torn: %v", r.Key(), r)
			return false
		}
		sum += rowHash(r.Key(), string(r["id"][0].Value), string(r["prop"][0].Value), string(r["prop"][1].Value), r["enc"][1].Value, r["enc"][0].Value)
		n++
		return true
	}, bigtable.RowFilter(bigtable.LatestNFilter(1)))
	if err == nil {
		err = bad
	}
	if err != nil {
		return err
	}
	fmt.Printf("  %.0f rows/s\n", float64(n)/time.Since(start).Seconds())
	if n != b.rows() || sum != want {
		return fmt.Errorf("%d rows with hash %016x, want %d with %016x", n, sum, b.rows(), want)
	}
	return nil
}

func (b *bench) queries(ctx context.Context) error {
	count := func(rs bigtable.RowSet, opts ...bigtable.ReadOption) (int, error) {
		n := 0
		err := b.table.ReadRows(ctx, rs, func(bigtable.Row) bool { n++; return true }, opts...)
		return n, err
	}
	expect := func(f func(c *character) bool) int {
		n := 0
		for i := range b.chars {
			if f(&b.chars[i]) {
				n += b.copies
			}
		}
		return n
	}
	for _, q := range []struct {
		what string
		rows bigtable.RowSet
		opts []bigtable.ReadOption
		want int
	}{
		{"prefix Greek#", bigtable.PrefixRange("Greek#"), nil,
			expect(func(c *character) bool { return c.script == "Greek" })},
		{"category Lu by value", bigtable.InfiniteRange(""), []bigtable.ReadOption{bigtable.RowFilter(bigtable.ChainFilters(
			bigtable.FamilyFilter("prop"), bigtable.ColumnFilter("category"), bigtable.ValueFilter("Lu")))},
			expect(func(c *character) bool { return c.category == "Lu" })},
		{"names with ALPHA", bigtable.PrefixRange("Greek#"), []bigtable.ReadOption{bigtable.RowFilter(bigtable.ChainFilters(
			bigtable.ColumnFilter("name"), bigtable.ValueFilter(`.*\bALPHA\b.*`), bigtable.StripValueFilter()))},
			expect(func(c *character) bool {
				return c.script == "Greek" && slices.Contains(strings.FieldsFunc(c.name, func(r rune) bool { return r == ' ' || r == '-' }), "ALPHA")
			})},
		{"keys by regex", bigtable.PrefixRange("Latin#"), []bigtable.ReadOption{bigtable.RowFilter(bigtable.RowKeyFilter(`Latin#0004.#00`))},
			expect(func(c *character) bool { return c.script == "Latin" && c.code>>4 == 4 }) / b.copies},
		{"first 100", bigtable.InfiniteRange(""), []bigtable.ReadOption{bigtable.LimitRows(100)}, 100},
		{"last 100", bigtable.InfiniteRange(""), []bigtable.ReadOption{bigtable.LimitRows(100), bigtable.ReverseScan()}, 100},
	} {
		start := time.Now()
		got, err := count(q.rows, q.opts...)
		if err != nil {
			return fmt.Errorf("%s: %w", q.what, err)
		}
		if got != q.want {
			return fmt.Errorf("%s: %d rows, want %d", q.what, got, q.want)
		}
		fmt.Printf("  %-24s %8d rows %10.1f ms\n", q.what, got, float64(time.Since(start).Microseconds())/1000)
	}
	for i := 0; i < len(b.chars); i += len(b.chars) / 50 {
		c := &b.chars[i]
		r, err := b.table.ReadRow(ctx, c.key(b.copies-1))
		if err != nil {
			return err
		}
		if len(r["id"]) != 1 || string(r["id"][0].Value) != c.name || !bytes.Equal(r["enc"][1].Value, c.utf8()) {
			return fmt.Errorf("row %q is %v", c.key(b.copies-1), r)
		}
	}
	return nil
}

// kill writes rows of its own, kills the server in the middle, starts it again
// and checks that what was acknowledged is there; then it deletes those rows.
func (b *bench) kill(ctx context.Context) error {
	const workers = 16
	var acked [workers]atomic.Int64
	writing, cancel := context.WithCancel(ctx)
	defer cancel()
	var done sync.WaitGroup
	for w := range workers {
		done.Add(1)
		go func() {
			defer done.Done()
			for i := int64(1); writing.Err() == nil; i++ {
				m := bigtable.NewMutation()
				m.Set("id", "name", stamp, []byte(strconv.FormatInt(i, 10)))
				m.Set("prop", "script", stamp, []byte(strconv.FormatInt(i, 10)))
				if err := b.table.Apply(writing, fmt.Sprintf("~kill#%02d#%09d", w, i), m); err != nil {
					return
				}
				acked[w].Store(i)
			}
		}()
	}
	time.Sleep(2 * time.Second)
	if b.server.Cluster != nil {
		if err := b.server.Cluster.Ended(); err != nil {
			return fmt.Errorf("of the cluster %w\n%s", err, b.server.Log())
		}
	}
	if err := b.server.Kill(); err != nil {
		return err
	}
	cancel()
	done.Wait()
	b.client.Close()
	b.admin.Close()
	start := time.Now()
	if err := b.start(ctx); err != nil {
		return err
	}
	if _, err := b.table.ReadRow(ctx, b.chars[0].key(0)); err != nil {
		return err
	}
	first := time.Since(start)
	var total int64
	seen := [workers]int64{}
	var bad error
	err := b.table.ReadRows(ctx, bigtable.PrefixRange("~kill#"), func(r bigtable.Row) bool {
		parts := strings.Split(r.Key(), "#")
		w, _ := strconv.Atoi(parts[1])
		i, _ := strconv.ParseInt(parts[2], 10, 64)
		if i != seen[w]+1 {
			bad = fmt.Errorf("worker %d: row %d follows %d", w, i, seen[w])
			return false
		}
		if len(r["id"]) != 1 || len(r["prop"]) != 1 {
			bad = fmt.Errorf("row %q is torn", r.Key())
			return false
		}
		seen[w] = i
		return true
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return err
	}
	for w := range workers {
		if seen[w] < acked[w].Load() {
			return fmt.Errorf("worker %d: %d acknowledged, %d found", w, acked[w].Load(), seen[w])
		}
		total += acked[w].Load()
	}
	fmt.Printf("  %d rows acknowledged before the kill, all found; first answer %.0f ms after the restart\n", total, float64(first.Microseconds())/1000)
	return b.admin.DropRowRange(ctx, "ucd", "~kill#")
}

func (b *bench) cbtImport(ctx context.Context, cbt string) error {
	if err := b.admin.CreateTableFromConf(ctx, &bigtable.TableConf{TableID: "imported",
		Families: map[string]bigtable.GCPolicy{"id": bigtable.NoGcPolicy(), "prop": bigtable.NoGcPolicy(), "enc": bigtable.NoGcPolicy()}}); err != nil {
		return err
	}
	path := filepath.Join(b.dir, "ucd.csv")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer os.Remove(path)
	w := csv.NewWriter(f)
	_ = w.Write([]string{"", "id", "prop", "", "enc", ""})
	_ = w.Write([]string{"", "name", "category", "script", "utf8", "utf16"})
	skipped := map[rune]bool{}
	for i := range b.chars {
		c := &b.chars[i]
		u8, u16 := string(c.utf8()), string(c.utf16())
		// CSV keeps a carriage return only alone, and cbt leaves empty fields out.
		if strings.ContainsRune(u8+u16, '\r') || strings.ContainsRune(u8+u16, '\n') {
			skipped[c.code] = true
			continue
		}
		for n := range b.copies {
			if err := w.Write([]string{c.key(n), c.name, c.category, c.script, u8, u16}); err != nil {
				return err
			}
		}
	}
	w.Flush()
	if err := w.Error(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, cbt, "-project", project, "-instance", instance, "import", "imported", path, "batch-size=1000", "workers=4").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	fmt.Printf("  %s\n", lastLine(out))
	// The rows whose bytes a CSV file cannot carry come by the client.
	for i := range b.chars {
		c := &b.chars[i]
		if !skipped[c.code] {
			continue
		}
		for n := range b.copies {
			m := bigtable.NewMutation()
			m.Set("id", "name", stamp, []byte(c.name))
			m.Set("prop", "category", stamp, []byte(c.category))
			m.Set("prop", "script", stamp, []byte(c.script))
			m.Set("enc", "utf8", stamp, c.utf8())
			m.Set("enc", "utf16", stamp, c.utf16())
			if err := b.client.Open("imported").Apply(ctx, c.key(n), m); err != nil {
				return err
			}
		}
	}
	return nil
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}
