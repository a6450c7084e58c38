package connectors

import (
	"bytes"
	"fmt"
	"strings"
)

// A Program is a row of the page.
type Program struct {
	// ID names its outcome, Fetch the file in testdata that says what is fetched: XX
	ID, Fetch string
	// Name and Version are those of the publisher.
	Name, Version string
	// Face is the API that it speaks, Against what it was run against.
	Face, Against string
}

// What programs speak, and run against.
const (
	hbaseAPI    = "HBase"
	bigtableAPI = "Bigtable"

	oneProcess = "one process"
	killed     = "cluster of three, two servers killed"
)

// Programs are the rows of the page, in its order.
var Programs = []Program{
	{"RowCounter", "tools.xml", "HBase RowCounter", "2.6.4", hbaseAPI, oneProcess},
	{"CellCounter", "tools.xml", "HBase CellCounter", "2.6.4", hbaseAPI, oneProcess},
	{"Export", "tools.xml", "HBase Export", "2.6.4", hbaseAPI, oneProcess},
	{"Import", "tools.xml", "HBase Import", "2.6.4", hbaseAPI, oneProcess},
	{"ImportTsv", "tools.xml", "HBase ImportTsv", "2.6.4", hbaseAPI, oneProcess},
	{"CopyTable", "tools.xml", "HBase CopyTable", "2.6.4", hbaseAPI, oneProcess},
	{"HashTable", "tools.xml", "HBase HashTable", "2.6.4", hbaseAPI, oneProcess},
	{"SyncTable", "tools.xml", "HBase SyncTable", "2.6.4", hbaseAPI, oneProcess},
	{"WordCount", "tools.xml", "WordCount on HBase's TableInputFormat and TableOutputFormat", "2.6.4", hbaseAPI, oneProcess},
	{"WordCountKilled", "tools.xml", "The same WordCount", "2.6.4", hbaseAPI, killed},
	{"asynchbase", "async.xml", "asynchbase (OpenTSDB's client)", "1.8.2", hbaseAPI, oneProcess},
	{"JanusGraph", "janusgraph.xml", "JanusGraph, `storage.backend=hbase`", "1.1.0", hbaseAPI, oneProcess},
	{"FlinkHBase", "flink.xml", "Flink SQL 1.19, its HBase 2.2 connector", "4.0.0-1.19", hbaseAPI, oneProcess},
	{"BeamJava", "beam.xml", "Beam Java, BigtableIO on the DirectRunner", "2.72.0", bigtableAPI, oneProcess},
	{"BeamPython", "beam-python.txt", "Beam Python, WriteToBigTable on the DirectRunner", "2.77.0", bigtableAPI, oneProcess},
	{"BeamGo", "beamgo/go.mod", "Beam Go, bigtableio on prism", "2.77.0", bigtableAPI, oneProcess},
	{"Spark", "spark.xml", "Google's Spark connector, on Spark 3.5.8", "0.6.0", bigtableAPI, oneProcess},
	{"Feast", "feast.txt", "Feast online store", "0.67.0", bigtableAPI, oneProcess},
	{"LangChain", "langchain.txt", "LangChain, BigtableByteStore", "0.8.0", bigtableAPI, oneProcess},
}

// Elsewhere are the rows of programs that no registry has, with the reason.
var Elsewhere = []struct{ Name, Face, Why string }{
	{"YCSB, bindings hbase2 and googlebigtable", hbaseAPI + ", " + bigtableAPI, "`site.ycsb:hbase20-binding` and `site.ycsb:googlebigtable-binding` 0.17.0 are not in Maven Central; YCSB is released on GitHub"},
	{"Google's Flink sink", bigtableAPI, "`com.google.flink.connector.gcp:flink-connector-gcp-bigtable`, which its README names, was not found in Maven Central (0.1.0 to 0.3.2)"},
	{"Google's Kafka Connect sink", bigtableAPI, "no release: its README has it built from source"},
	{"Google's Cassandra proxy and its compliance tests", bigtableAPI, "the Go module proxy refuses `github.com/GoogleCloudPlatform/cloud-bigtable-ecosystem/cassandra-bigtable-migration-tools/cassandra-bigtable-proxy` (403, for the list of versions and for the latest). `conformance/sdk/smoke/sql.json` has SQL of the forms that it writes"},
}

// How a run of a program ended. An outcome that is not there was no run.
const (
	Works      = "works"
	Fails      = "fails"
	NotFetched = "not fetched"
)

// An Outcome is what a run of a program showed.
type Outcome struct {
	State string
	// Ran says what it did.
	Ran []string
	// Lacks says what does not work, and why.
	Lacks []string `json:",omitempty"`
}

// Page returns docs/connectors.md for the outcomes of programs, by ID.
func Page(of map[string]Outcome) []byte {
	var b bytes.Buffer
	b.WriteString(`# Other people's programs

Which published programs run on Trestle, unchanged, and what does not work. A test fetches each, runs it, and reads what is stored with the official Go client. ` + "`make connectors`" + ` runs them and writes this page, from [results.json](../conformance/connectors/testdata/results.json); [the tests](../conformance/connectors) show how each program is set up.

| program | version | API | run against | | what ran | what does not work |
|---|---|---|---|---|---|---|
`)
	for _, p := range Programs {
		o, ok := of[p.ID]
		if !ok {
			o.State = "not run yet"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", p.Name, p.Version, p.Face, p.Against, o.State, sentence(o.Ran), sentence(o.Lacks))
	}
	for _, p := range Elsewhere {
		fmt.Fprintf(&b, "| %s | | %s | | not fetched | | not run: %s |\n", p.Name, p.Face, p.Why)
	}
	b.WriteString(`
Programs of the Bigtable API find the server by ` + "`BIGTABLE_EMULATOR_HOST`" + ` or a setting of theirs. Those of HBase find it by ZooKeeper's address, which is ` + "`--hbase-zookeeper-listen`" + `. What HBase clients cannot do at all: [hbase.md](hbase.md#what-is-not-there).
`)
	return b.Bytes()
}

func sentence(parts []string) string {
	return strings.ReplaceAll(strings.Join(parts, "; "), "|", "\\|")
}
