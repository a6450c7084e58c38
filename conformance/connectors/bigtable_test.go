package connectors

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
)

// TestLangChain runs LangChain's key-value store.
func TestLangChain(t *testing.T) {
	with(t, "LangChain", func(r *run) {
		p := serve(t)
		r.do(p.emulator(), r.dir+"/bin/python", "testdata/langchain_store.py")
		data, _ := p.connect(t)
		of := latest(r, data, "pairs")
		for n := 100; n < 500; n++ {
			if key := fmt.Sprintf("doc:%03d kv:val", n); of[key] != fmt.Sprint("\x00", n) {
				r.Fatalf("%s is %q", key, of[key])
			}
		}
		if len(of) != 401 {
			r.Errorf("%d pairs are stored, not 401", len(of))
		}
		r.ran("wrote 501 pairs, read some, listed keys by prefix and deleted 100, by its plain and its asyncio calls")
		r.lacks("its vector store (not run): wants SQL with distance functions")
	})
}

// TestFeast runs Feast with Bigtable as its online store.
func TestFeast(t *testing.T) {
	with(t, "Feast", func(r *run) {
		p, dir := serve(t), t.TempDir()
		env := append(p.emulator(), "FEAST_USAGE=False")
		r.do(env, r.dir+"/bin/python", "testdata/feast_store.py", dir, "apply")
		data, admin := p.connect(t)
		of := latest(r, data, "shop.driver")
		cities := 0
		for key, value := range of {
			if strings.HasSuffix(key, "#stats features:city") && strings.Contains(value, "city ") {
				cities++
			}
		}
		// A row has three features and the time of the event.
		if cities != 301 || len(of) != 4*301 {
			r.Errorf("%d cells with %d cities are stored, not 1204 with 301", len(of), cities)
		}
		r.do(env, r.dir+"/bin/python", "testdata/feast_store.py", dir, "teardown")
		if tables, err := admin.Tables(r.Context()); err != nil || len(tables) != 0 {
			r.Errorf("after teardown there are tables %q, error %v", tables, err)
		}
		r.ran("applied a feature view (table and family are made), materialized 300 entities, wrote one, read features, tore down")
	})
}

// squares checks what the Beam pipelines write: the square of each row's number.
func (r *run) squares(data *bigtable.Client, rows int) {
	r.Helper()
	list := cells(r, data, "beam")
	if len(list) != rows {
		r.Fatalf("%d cells are stored, not %d", len(list), rows)
	}
	for n, got := range list {
		want := cell{fmt.Sprintf("row%05d", n), "f:square", bigtable.Time(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)), strconv.Itoa(n * n)}
		if got != want {
			r.Fatalf("cell %d is %v, not %v", n, got, want)
		}
	}
}

// TestBeamPython writes with Beam's WriteToBigTable.
func TestBeamPython(t *testing.T) {
	with(t, "BeamPython", func(r *run) {
		p := serve(t)
		data, admin := p.connect(t)
		create(r, admin, "beam", []string{"f"}, "row01000", "row02000")
		r.do(p.emulator(), r.dir+"/bin/python", "testdata/beam_write.py")
		r.squares(data, 3000)
		r.ran("wrote 3,000 rows")
		r.lacks("ReadFromBigtable (not run): it is Beam Java's, in a process of its own")
	})
}

// TestBeamGo writes with Beam's bigtableio, in both its ways.
func TestBeamGo(t *testing.T) {
	with(t, "BeamGo", func(r *run) {
		p := serve(t)
		data, admin := p.connect(t)
		create(r, admin, "beam", []string{"f"}, "row01000", "row02000")
		r.do(p.emulator(), r.dir+"/beamgo")
		r.squares(data, 3000)
		r.ran("wrote 3,000 rows, by Write and by WriteBatch")
	})
}

// TestBeamJava writes and reads with Beam's BigtableIO.
func TestBeamJava(t *testing.T) {
	with(t, "BeamJava", func(r *run) {
		p := serve(t)
		data, admin := p.connect(t)
		create(r, admin, "beam", []string{"f"}, "row25000", "row50000", "row75000")
		out := r.do(nil, "java", r.java(r.compile("BeamTable.java"), "BeamTable", p.grpc)...)
		if !strings.Contains(out, "beam ok\n") {
			r.Errorf("it ended early: %s", out)
		}
		r.squares(data, 100_000)
		r.ran("wrote 100,000 rows; read them all, in pieces by SampleRowKeys, a range of rows, and what a filter lets through")
	})
}

// TestSpark writes and reads with Google's connector.
func TestSpark(t *testing.T) {
	with(t, "Spark", func(r *run) {
		p := serve(t)
		data, admin := p.connect(t)
		_, port, _ := strings.Cut(p.grpc, ":")
		create(r, admin, "spark", []string{"f", "g"}, "row03000", "row06000")
		out := r.do(nil, "java", r.java(r.compile("SparkTable.java"), "SparkTable", port)...)
		if !strings.Contains(out, "spark ok\n") {
			r.Errorf("it ended early: %s", out)
		}
		for _, table := range []string{"spark", "made"} {
			of := latest(r, data, table)
			for n := range 10_000 {
				key := fmt.Sprintf("row%05d ", n)
				if of[key+"f:n"] != string(binary.BigEndian.AppendUint64(nil, uint64(2*n))) || of[key+"g:text"] != fmt.Sprint("text ", n%10) {
					r.Fatalf("row %s of %s has %q and %q", key, table, of[key+"f:n"], of[key+"g:text"])
				}
			}
		}
		r.ran("wrote 10,000 rows into a table, and into another that it made; read them in a partition for each tablet, and by ranges, prefixes and single keys; grouped, joined")
	})
}

// TestJanusGraph keeps a graph in HBase's tables.
func TestJanusGraph(t *testing.T) {
	with(t, "JanusGraph", func(r *run) {
		p := serve(t)
		data, admin := p.connect(t)
		classes := r.compile("JanusGraph.java")
		host, port, _ := strings.Cut(p.zookeeper, ":")
		out := r.do(nil, "java", r.java(classes, "JanusGraph", host, port, "build")...)
		if !strings.Contains(out, "janusgraph ok\n") {
			r.Errorf("it ended early: %s", out)
		}
		if n := len(cells(r, data, "graph")); n < 1000 {
			r.Errorf("%d cells of the graph are stored, not a thousand", n)
		}
		r.do(nil, "java", r.java(classes, "JanusGraph", host, port, "drop")...)
		if tables, err := admin.Tables(r.Context()); err != nil || len(tables) != 0 {
			r.Errorf("after the graph was dropped there are tables %q, error %v", tables, err)
		}
		r.ran("made a schema with a unique index, wrote 302 vertices and 600 edges, queried by index and by traversal, opened it again, changed and removed some, was refused a name that is taken, dropped the graph")
	})
}
