package connectors

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/trestledb/trestle/conformance/target"
)

// opens lets Hadoop and others reach into a JDK 17.
var opens = strings.Fields(`--add-opens java.base/java.io=ALL-UNNAMED --add-opens java.base/java.nio=ALL-UNNAMED --add-opens java.base/sun.nio.ch=ALL-UNNAMED
	--add-opens java.base/java.lang=ALL-UNNAMED --add-opens java.base/jdk.internal.ref=ALL-UNNAMED --add-opens java.base/java.lang.reflect=ALL-UNNAMED
	--add-opens java.base/java.lang.invoke=ALL-UNNAMED --add-opens java.base/sun.security.action=ALL-UNNAMED --add-opens java.base/sun.util.calendar=ALL-UNNAMED
	--add-opens java.base/java.util=ALL-UNNAMED --add-opens java.base/java.util.concurrent=ALL-UNNAMED --add-opens java.base/java.util.concurrent.atomic=ALL-UNNAMED
	--add-opens java.base/java.net=ALL-UNNAMED --add-opens java.base/sun.nio.cs=ALL-UNNAMED --add-exports java.base/jdk.internal.misc=ALL-UNNAMED`)

// java is the command line of a Java program with the jars of r.
func (r *run) java(conf string, args ...string) []string {
	return slices.Concat([]string{"-Xmx1g"}, opens, []string{"-cp", conf + ":" + r.dir + "/*"}, args)
}

// compile returns the directory of the classes of a file in testdata.
func (r *run) compile(file string) string {
	r.Helper()
	dir := r.TempDir()
	r.do(nil, "javac", "-J-Xmx512m", "-nowarn", "-d", dir, "-cp", r.dir+"/*", filepath.Join("testdata", file))
	return dir
}

// site writes an hbase-site.xml into a new directory.
func site(t *testing.T, p place) string {
	t.Helper()
	dir := t.TempDir()
	var b strings.Builder
	b.WriteString("<configuration>\n")
	for k, v := range map[string]string{"hbase.zookeeper.quorum": p.zookeeper, "hadoop.tmp.dir": filepath.Join(dir, "tmp"), "hbase.client.retries.number": "15"} {
		fmt.Fprintf(&b, "<property><name>%s</name><value>%s</value></property>\n", k, v)
	}
	b.WriteString("</configuration>\n")
	if err := os.WriteFile(filepath.Join(dir, "hbase-site.xml"), []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// tool runs one of HBase's jobs.
func (r *run) tool(conf, class string, args ...string) string {
	r.Helper()
	return r.do(nil, "java", r.java(conf, append([]string{"org.apache.hadoop.hbase.mapreduce." + class}, args...)...)...)
}

// counter is the value of a counter of a job, in what it printed: the last one, after
// those of its tasks.
func (r *run) counter(out, name string) int {
	r.Helper()
	all := regexp.MustCompile(`(?m)\b`+regexp.QuoteMeta(name)+`[=\t ]+(\d+)\s*$`).FindAllStringSubmatch(out, -1)
	if len(all) == 0 {
		r.Fatalf("it does not say %s\n%s", name, out[max(len(out)-3000, 0):])
	}
	n, _ := strconv.Atoi(all[len(all)-1][1])
	return n
}

// same compares all cells of two tables.
func (r *run) same(data *bigtable.Client, want, got string) int {
	r.Helper()
	w, g := cells(r, data, want), cells(r, data, got)
	if !slices.Equal(w, g) {
		r.Errorf("%s has %d cells, %s has %d, and they are not the same", want, len(w), got, len(g))
	}
	return len(w)
}

// source fills a table of two families and four tablets with rows, a row of two
// versions in one column and a value that is no text in the other.
func source(t *testing.T, p place, rows int) (data *bigtable.Client, admin *bigtable.AdminClient) {
	t.Helper()
	data, admin = p.connect(t)
	create(t, admin, "source", []string{"f", "g"}, "row00250", "row00500", "row00750")
	keys, muts := make([]string, rows), make([]*bigtable.Mutation, rows)
	for i := range rows {
		keys[i], muts[i] = fmt.Sprintf("row%05d", i), bigtable.NewMutation()
		muts[i].Set("f", "q", 1_000_000, fmt.Appendf(nil, "old %d", i))
		muts[i].Set("f", "q", 2_000_000, fmt.Appendf(nil, "new %d", i))
		muts[i].Set("g", "binary", 3_000_000, []byte{0, 255, byte(i)})
	}
	put(t, data, "source", keys, muts)
	return data, admin
}

// TestHBaseTools runs the jobs that come with HBase, each in a process of its own.
func TestHBaseTools(t *testing.T) {
	const rows = 1000
	var p place
	var data *bigtable.Client
	var admin *bigtable.AdminClient
	var conf string
	// job runs a test of a job beside a table that the first of them makes.
	job := func(name string, test func(r *run)) {
		t.Run(name, func(t2 *testing.T) {
			with(t2, name, func(r *run) {
				if data == nil {
					p = serve(t)
					data, admin = source(t, p, rows)
					conf = site(t, p)
				}
				test(r)
			})
		})
	}
	job("RowCounter", func(r *run) {
		if n := r.counter(r.tool(conf, "RowCounter", "source"), "ROWS"); n != rows {
			r.Errorf("it counts %d rows of %d", n, rows)
		}
		r.ran("counted the %s rows of a table of four tablets", count(rows))
	})
	job("CellCounter", func(r *run) {
		out := filepath.Join(conf, "cells")
		r.tool(conf, "CellCounter", "source", out, ";", "^row0")
		text, err := os.ReadFile(filepath.Join(out, "part-r-00000"))
		if err != nil {
			r.Fatal(err)
		}
		for name, want := range map[string]int{"Total ROWS": rows, "f;q": rows, "g;binary": rows, "row00007;f;q_Versions": 2} {
			if n := r.counter(string(text), name); n != want {
				r.Errorf("%s is %d, not %d", name, n, want)
			}
		}
		r.ran("counted rows, families, columns and versions of %s rows", count(rows))
	})
	exported := func() string { return filepath.Join(conf, "exported") }
	job("Export", func(r *run) {
		if n := r.counter(r.tool(conf, "Export", "source", exported(), "10"), "Map output records"); n != rows {
			r.Errorf("it exports %d rows of %d", n, rows)
		}
		r.ran("wrote %s rows with all versions to SequenceFiles", count(rows))
		r.refuses(conf, "raw scans (`-Dhbase.mapreduce.include.deleted.rows=true`)", "Export", "-Dhbase.mapreduce.include.deleted.rows=true", "source", exported()+"-raw")
	})
	job("Import", func(r *run) {
		create(r, admin, "imported", []string{"f", "g"})
		r.tool(conf, "Import", "imported", exported())
		r.ran("read what Export had written into another table: %s cells, with the same timestamps", count(r.same(data, "source", "imported")))
	})
	job("ImportTsv", func(r *run) {
		create(r, admin, "tsv", []string{"f", "g"}, "line3")
		var b strings.Builder
		for i := range rows {
			fmt.Fprintf(&b, "line%d\tleft %d\tright %d\n", i, i, -i)
		}
		file := filepath.Join(conf, "lines.tsv")
		if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
			r.Fatal(err)
		}
		r.tool(conf, "ImportTsv", "-Dimporttsv.columns=HBASE_ROW_KEY,f:left,g:right", "tsv", file)
		of := latest(r, data, "tsv")
		for i := range rows {
			if key := fmt.Sprintf("line%d ", i); of[key+"f:left"] != fmt.Sprint("left ", i) || of[key+"g:right"] != fmt.Sprint("right ", -i) {
				r.Fatalf("row %s has %q and %q", key, of[key+"f:left"], of[key+"g:right"])
			}
		}
		r.ran("loaded %s lines of two columns with puts", count(rows))
		hfiles := filepath.Join(conf, "hfiles")
		r.tool(conf, "ImportTsv", "-Dimporttsv.columns=HBASE_ROW_KEY,f:left,g:right", "-Dimporttsv.bulk.output="+hfiles, "tsv", file)
		r.ran("wrote HFiles of them (`importtsv.bulk.output`)")
		out, err := execute(r.Context(), 3*time.Minute, io.Discard, nil, "java", r.java(conf, "org.apache.hadoop.hbase.tool.BulkLoadHFilesTool", "-Dhbase.client.retries.number=2", hfiles, "tsv")...)
		if err == nil || !strings.Contains(string(out), "load rows with puts") {
			r.Errorf("loading HFiles is not refused with what to do instead: %v\n%s", err, out[max(len(out)-3000, 0):])
		}
		r.lacks("loading HFiles (`BulkLoadHFilesTool`): refused, \"load rows with puts\"")
	})
	job("CopyTable", func(r *run) {
		create(r, admin, "copy", []string{"f", "g"})
		r.tool(conf, "CopyTable", "--versions=10", "--new.name=copy", "source")
		r.ran("copied %s cells with all versions", count(r.same(data, "source", "copy")))
		create(r, admin, "window", []string{"f", "h"})
		r.tool(conf, "CopyTable", "--starttime=2000", "--endtime=4000", "--startrow=row00100", "--stoprow=row00200", "--families=f,g:h", "--new.name=window", "source")
		if n := len(cells(r, data, "window")); n != 200 {
			r.Errorf("a range of 100 rows and two timestamps has %d cells, not 200", n)
		}
		r.ran("a range of rows and of time, with a family renamed")
		r.refuses(conf, "`--all.cells`, a raw scan", "CopyTable", "--all.cells", "--new.name=copy", "source")
	})
	hashes := func() string { return filepath.Join(conf, "hashes") }
	job("HashTable", func(r *run) {
		if n := r.counter(r.tool(conf, "HashTable", "--batchsize=2000", "--numhashfiles=3", "--versions=10", "source", hashes()), "Map input records"); n != rows {
			r.Errorf("it hashes %d rows of %d", n, rows)
		}
		r.ran("hashed %s rows in three files", count(rows))
	})
	job("SyncTable", func(r *run) {
		create(r, admin, "synced", []string{"f", "g"})
		r.tool(conf, "CopyTable", "--versions=10", "--startrow=row00010", "--new.name=synced", "source")
		change := bigtable.NewMutation()
		change.Set("f", "q", 2_000_000, []byte("another"))
		more := bigtable.NewMutation()
		more.Set("f", "q", 2_000_000, []byte("too many"))
		put(r, data, "synced", []string{"row00500", "row00500x"}, []*bigtable.Mutation{change, more})
		out := r.tool(conf, "SyncTable", "--dryrun=false", hashes(), "source", "synced")
		r.same(data, "source", "synced")
		r.ran("compared a copy of %s rows with HashTable's hashes; found and mended %d missing rows, %d other value and %d row too many", count(rows), r.counter(out, "TARGETMISSINGROWS"), r.counter(out, "DIFFERENTCELLVALUES"), r.counter(out, "SOURCEMISSINGROWS"))
	})
}

// refuses checks that a job is told that raw scans are not there, instead of
// missing something.
func (r *run) refuses(conf, what, class string, args ...string) {
	r.Helper()
	args = append([]string{"org.apache.hadoop.hbase.mapreduce." + class, "-Dhbase.client.retries.number=2", "-Dmapreduce.map.maxattempts=1"}, args...)
	out, err := execute(r.Context(), 3*time.Minute, io.Discard, nil, "java", r.java(conf, args...)...)
	if why := regexp.MustCompile(`(?i)[^\n]*raw scan[^\n]*`).Find(out); err == nil || why == nil {
		r.Errorf("%s is not refused with a word of raw scans: %v\n%s", class, err, out[max(len(out)-3000, 0):])
	}
	r.lacks("%s: refused", what)
}

// TestWordCount counts words by a MapReduce job between two tables.
func TestWordCount(t *testing.T) {
	with(t, "WordCount", func(r *run) {
		p := serve(t)
		rows, words, kinds := r.wordCount(p, 20_000, nil)
		r.ran("read %s rows of four tablets, wrote the counts of %s words (%s distinct) to a table of three", count(rows), count(words), count(kinds))
	})
}

// TestWordCountKilled kills a server of a cluster amid the job.
func TestWordCountKilled(t *testing.T) {
	with(t, "WordCountKilled", func(r *run) {
		c := target.ServeCluster(t, target.ClusterOptions{HBase: true, TTL: 3 * time.Second})
		p := place{grpc: c.Addrs[0], zookeeper: strings.Join(c.ZooKeeper, ","), servers: c}
		killed := 0
		rows, words, kinds := r.wordCount(p, 200_000, func(task string) {
			// When the second map begins, and when the reduce does, which writes.
			if task != "m_000001_0" && task != "r_000000_0" {
				return
			}
			killed++
			if err := c.KillServer(killed); err != nil {
				r.Errorf("%v", err)
			}
			r.T.Logf("server %d is killed when task %s begins", killed, task)
		})
		if killed != 2 {
			r.Errorf("%d servers were killed, not two", killed)
		}
		r.ran("read %s rows, wrote the counts of %s words (%s distinct), none wrong; one server was killed (`kill -9`) while the maps read, another when the reduce began", count(rows), count(words), count(kinds))
	})
}

// wordCount fills a table with rows of ten words each, counts the words with
// testdata/WordCount.java, and compares the counts. It calls begun with
// each task of the job.
func (r *run) wordCount(p place, rows int, begun func(task string)) (_, words, kinds int) {
	r.Helper()
	data, admin := p.connect(r)
	n := rows / 4
	key := func(i int) string { return fmt.Sprintf("line%08d", i) }
	create(r, admin, "lines", []string{"f"}, key(n), key(2*n), key(3*n))
	create(r, admin, "counts", []string{"f"}, "word3", "word6")
	want := map[string]string{}
	count, random := map[string]int{}, rand.New(rand.NewPCG(1, 2))
	keys, muts := make([]string, rows), make([]*bigtable.Mutation, rows)
	for i := range rows {
		line := make([]string, 10)
		for j := range line {
			line[j] = fmt.Sprintf("word%d", int(random.ExpFloat64()*1000))
			count[line[j]]++
		}
		keys[i], muts[i] = key(i), bigtable.NewMutation()
		muts[i].Set("f", "text", 1_000_000, []byte(strings.Join(line, " ")))
	}
	for word, n := range count {
		want[word+" f:n"] = strconv.Itoa(n)
	}
	put(r, data, "lines", keys, muts)

	conf := site(r.T, p)
	lines, in := io.Pipe()
	tasks, done := 0, make(chan struct{})
	go func() {
		defer close(done)
		start := regexp.MustCompile(`Starting task: attempt_local\d+_\d+_(\S+)`)
		for said := bufio.NewScanner(lines); said.Scan(); {
			if m := start.FindStringSubmatch(said.Text()); m != nil {
				tasks++
				if begun != nil {
					begun(m[1])
				}
			}
		}
		_, _ = io.Copy(io.Discard, lines)
	}()
	out, err := execute(r.Context(), 10*time.Minute, in, nil, "java", r.java(conf+":"+r.compile("WordCount.java"), "WordCount", "lines", "counts")...)
	_ = in.Close()
	<-done
	if err != nil {
		r.Fatalf("the job: %v\n%s", complaint(out, err), out[max(len(out)-6000, 0):])
	}
	if tasks != 5 {
		r.Errorf("%d tasks, not one for each tablet and one for the counts", tasks)
	}
	if got := latest(r, data, "counts"); !maps.Equal(got, want) {
		r.Errorf("%d words with their counts, %d are stored, and they are not the same", len(want), len(got))
	}
	return rows, 10 * rows, len(want)
}

// TestAsynchbase runs OpenTSDB's client, by the program that makes hbase has for it.
func TestAsynchbase(t *testing.T) {
	with(t, "asynchbase", func(r *run) {
		p := serve(t)
		data, admin := p.connect(t)
		create(r, admin, "async", []string{"f"})
		out := r.do(nil, "java", r.java(".", "../sdk/hbase/Async.java", p.zookeeper, "async")...)
		if !strings.Contains(out, "ok delete\n") {
			r.Errorf("it ended early: %s", out)
		}
		if n := len(cells(t, data, "async")); n < 49 {
			r.Errorf("%d cells are stored", n)
		}
		r.ran("put, get, increment, compare-and-set, a scan of pages and delete")
	})
}

// TestFlinkHBase writes and reads with Flink's connector for HBase.
func TestFlinkHBase(t *testing.T) {
	with(t, "FlinkHBase", func(r *run) {
		p := serve(t)
		data, admin := p.connect(t)
		create(r, admin, "flink", []string{"f", "g"}, "row02000", "row04000")
		create(r, admin, "totals", []string{"f"})
		out := r.do(nil, "java", r.java(r.compile("FlinkTable.java"), "FlinkTable", p.zookeeper)...)
		if !strings.Contains(out, "flink ok\n") {
			r.Errorf("it ended early: %s", out)
		}
		number := func(n int) string { return string(binary.BigEndian.AppendUint64(nil, uint64(n))) }
		rows, totals := latest(r, data, "flink"), latest(r, data, "totals")
		for n := range 5000 {
			if key := fmt.Sprintf("row%05d ", n); rows[key+"f:n"] != number(n) || rows[key+"f:text"] != fmt.Sprint("text ", n%10) || len(rows[key+"g:half"]) != 8 {
				r.Fatalf("row %s has %q, %q and %q", key, rows[key+"f:n"], rows[key+"f:text"], rows[key+"g:half"])
			}
		}
		for n := range 10 {
			if got := totals[fmt.Sprintf("digit%d f:n", n)]; got != number(500) {
				r.Errorf("digit %d has %q", n, got)
			}
		}
		r.ran("by SQL: wrote 5,000 rows of two families, read and summed them, joined a stream with them (5,000 lookups), kept the counts of a stream")
		r.lacks("with ZooKeeper's own client 3.4 it finds no HBase on Java 14 and later; ran with 3.5.10")
	})
}

// count writes a number with commas.
func count(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", count(n/1000), n%1000)
}
