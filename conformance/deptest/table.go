package deptest

import (
	"fmt"
	"slices"
	"strings"
)

// Module is the path of this module.
const Module = "github.com/trestledb/trestle"

// leaves are the packages that give the engine's words their types, and varint, by which
// encodings are taken apart. Everybody may import them.
var leaves = []string{"engine/fault", "engine/budget", "engine/varint", "engine/cell", "engine/schema", "engine/row", "engine/filter", "engine/scan", "engine/stamp", "engine/changes", "engine/request"}

func and(lists ...[]string) []string { return slices.Concat(lists...) }

// below are the parts of a tablet.
var below = and(leaves, []string{"engine/mutex", "engine/aggregate", "engine/objectstore", "engine/commitlog", "engine/memtable", "engine/sstable",
	"engine/rowcache", "engine/metadata", "engine/merge", "engine/compaction", "engine/changes"})

// allowed says which of our packages a package may import outside its tests.
// A name ending in /... stands for a package and all below it.
// The longest name that fits a package counts; a package may always import
// what is below itself.
var allowed = map[string][]string{
	"engine/fault":               {},
	"engine/budget":              {"engine/fault"},
	"engine/cell":                {},
	"engine/varint":              {},
	"engine/stamp":               {"engine/cell"},
	"engine/changes":             {"engine/fault", "engine/varint", "engine/cell", "engine/schema", "engine/row", "engine/stamp"},
	"engine/schema":              {"engine/fault", "engine/cell"},
	"engine/row":                 {"engine/fault", "engine/cell", "engine/schema"},
	"engine/filter":              {"engine/fault", "engine/cell", "engine/schema", "engine/row"},
	"engine/scan":                {"engine/row", "engine/filter"},
	"engine/request":             {},
	"engine/aggregate":           {"engine/fault", "engine/cell", "engine/schema", "engine/row"},
	"engine/mutex":               {},
	"engine/datadir":             {"engine/fault"},
	"engine/datadir/datadirtest": {},
	"engine/tempfs":              {},
	"engine/tryio":               {},
	"engine/usertimeout":         {},
	"engine/loopback":            {},
	"engine/cputime":             {},
	"engine/leaktest":            {},
	"engine/logtest":             {},
	"engine/objectstore":         {"engine/fault", "engine/datadir"},
	"engine/objectstore/storetest": {
		"engine/fault", "engine/objectstore"},
	"engine/objectstore/diskcache": {"engine/fault", "engine/objectstore"},
	"engine/objectstore/s3":        {"engine/fault", "engine/objectstore"},
	"engine/objectstore/s3/s3test": {"engine/objectstore/s3", "engine/loopback"},
	"engine/objectstore/hdfs":      {"engine/fault", "engine/objectstore"},
	"engine/objectstore/hdfs/hdfstest": {
		"engine/objectstore/hdfs", "engine/loopback"},
	// How far the numbers of a record are apart depends on what they are.
	"engine/commitlog": {"engine/fault", "engine/mutex", "engine/datadir", "engine/objectstore", "engine/cell", "engine/stamp"},
	"engine/memtable":  {"engine/cell"},
	"engine/rowcache":  {"engine/cell"},
	"engine/sstable":   {"engine/fault", "engine/budget", "engine/mutex", "engine/cell", "engine/row", "engine/objectstore"},
	// A METADATA row names redo points and SSTables in their own types.
	"engine/metadata":   {"engine/fault", "engine/cell", "engine/changes", "engine/row", "engine/commitlog", "engine/sstable"},
	"engine/merge":      {"engine/fault", "engine/cell", "engine/schema", "engine/row"},
	"engine/compaction": {"engine/fault", "engine/cell", "engine/schema", "engine/merge", "engine/sstable"},
	"engine/locality":   {"engine/fault", "engine/schema", "engine/sstable"},
	"engine/tablet":     below,
	"engine/plan":       and(below, []string{"engine/tablet"}),
	"engine/worker":     {"engine/fault", "engine/tablet"},
	"engine/keyvis":     {"engine/fault", "engine/varint", "engine/row", "engine/objectstore", "engine/tablet"},
	"engine/matview":    {"engine/fault", "engine/varint", "engine/cell", "engine/schema", "engine/row", "engine/stamp", "engine/aggregate"},

	"engine/query/types":     {},
	"engine/query/syntax":    {"engine/fault"},
	"engine/query/functions": {"engine/fault", "engine/varint", "engine/aggregate", "engine/query/types"},
	"engine/query/algebra":   and(leaves, []string{"engine/query/types", "engine/query/functions"}),
	"engine/query/analyze":   and(leaves, []string{"engine/query/types", "engine/query/functions", "engine/query/syntax", "engine/query/algebra"}),
	"engine/query/plan":      and(leaves, []string{"engine/query/types", "engine/query/functions", "engine/query/algebra"}),
	"engine/query/fragment":  and(leaves, []string{"engine/query/types", "engine/query/functions", "engine/query/algebra"}),
	"engine/query/exec":      and(leaves, []string{"engine/query/types", "engine/query/functions", "engine/query/algebra", "engine/query/plan", "engine/query/fragment"}),
	"engine/query/materialize": and(leaves, []string{"engine/aggregate", "engine/matview", "engine/query/types", "engine/query/functions", "engine/query/syntax", "engine/query/algebra",
		"engine/query/analyze", "engine/query/plan", "engine/query/exec"}),
	"engine/query": leaves,

	"cluster/lock":        {"engine/fault"},
	"cluster/lock/etcd":   {"engine/fault", "cluster/lock"},
	"cluster/lock/memory": {"engine/fault", "cluster/lock"},
	// Its items are rows of a tablet.
	"cluster/lock/local":      and(below, []string{"engine/datadir", "engine/tablet", "engine/worker", "cluster/lock"}),
	"cluster/lock/locktest":   {"engine/fault", "cluster/lock"},
	"cluster/rpc":             and(leaves, []string{"engine/metadata", "engine/matview"}),
	"cluster/rpc/stream":      and(leaves, []string{"engine/tryio", "engine/usertimeout", "engine/metadata", "engine/matview", "cluster/rpc"}),
	"cluster/views":           and(leaves, []string{"engine/metadata", "engine/matview", "engine/tablet", "cluster/catalog", "cluster/rpc"}),
	"cluster/views/viewstest": and(leaves, []string{"engine/matview"}),
	"cluster/metastore":       and(leaves, []string{"engine/metadata", "cluster/lock", "cluster/rpc"}),
	"cluster/catalog":         and(leaves, []string{"engine/metadata", "engine/commitlog", "engine/objectstore", "engine/tablet", "cluster/lock", "cluster/metastore"}),
	"cluster/master":          and(leaves, []string{"engine/metadata", "engine/commitlog", "engine/objectstore", "cluster/lock", "cluster/metastore", "cluster/catalog", "cluster/rpc"}),
	"cluster/tabletserver":    and(below, []string{"engine/tablet", "engine/plan", "engine/worker", "engine/matview", "cluster/lock", "cluster/metastore", "cluster/catalog", "cluster/rpc", "cluster/views"}),
	"cluster/client":          and(leaves, []string{"engine/metadata", "engine/locality", "engine/tablet", "engine/plan", "engine/matview", "cluster/lock", "cluster/metastore", "cluster/catalog", "cluster/rpc", "cluster/views"}),
	"cluster/export":          {"engine/fault", "engine/commitlog", "engine/objectstore", "engine/sstable", "engine/schema", "engine/metadata"},
	"cluster/standalone":      {"engine/fault", "engine/cell", "engine/stamp", "engine/commitlog", "engine/datadir", "engine/metadata", "engine/objectstore", "cluster/..."},
	"cluster/check": and(below, []string{"engine/datadir", "engine/matview", "engine/locality", "engine/tablet", "cluster/lock", "cluster/lock/memory", "cluster/metastore",
		"cluster/catalog", "cluster/client", "cluster/master", "cluster/rpc", "cluster/tabletserver", "cluster/standalone", "cluster/views"}),
	"cluster/membership": {"engine/fault", "cluster/lock"},
	"cluster/recovery":   {"engine/fault", "engine/commitlog", "engine/metadata", "engine/objectstore", "cluster/lock", "cluster/catalog"},
	"cluster/node": {"engine/fault", "engine/datadir", "engine/metadata", "engine/objectstore/...", "cluster/lock", "cluster/lock/etcd", "cluster/rpc/stream",
		"cluster/metastore", "cluster/catalog", "cluster/client"},
	"cluster/transfer": {"engine/fault", "engine/cell", "engine/changes", "engine/commitlog", "engine/metadata", "engine/objectstore", "engine/sstable", "cluster/lock", "cluster/metastore", "cluster/catalog", "cluster/rpc", "cluster/tabletserver"},
	"cluster/sim":      and(below, []string{"engine/tablet", "cluster/..."}),

	"gateway/backend":   and(leaves, []string{"engine/matview"}),
	"gateway/wire":      leaves,
	"gateway/chunk":     leaves,
	"gateway/view":      leaves,
	"gateway/bundle":    {},
	"gateway/reread":    {},
	"gateway/transport": {"engine/tryio", "engine/usertimeout"},
	"gateway/rest":      {"engine/fault", "engine/budget", "gateway/wire"},
	"gateway/data":      and(leaves, []string{"gateway/backend", "gateway/wire", "gateway/chunk", "gateway/view", "gateway/sql"}),
	"gateway/session":   and(leaves, []string{"gateway/wire", "gateway/chunk"}),
	"gateway/admin":     and(leaves, []string{"gateway/backend", "gateway/wire", "gateway/view", "gateway/bundle", "gateway/reread", "gateway/auth/iam", "gateway/sql"}),
	"gateway/auth/...":  and(leaves, []string{"gateway/backend", "gateway/wire", "gateway/reread", "gateway/auth/..."}),
	"gateway/sql":       and(leaves, []string{"engine/query", "engine/query/types", "engine/query/algebra", "engine/query/materialize", "gateway/backend", "gateway/wire", "gateway/bundle"}),
	"gateway":           and(leaves, []string{"engine/matview", "engine/query", "engine/query/materialize", "gateway/..."}),

	"compat/sqlclient": {"engine/query/syntax"},
	"compat/sqldriver": {"compat/sqlclient"},

	"compat/hbase/pb":      {},
	"compat/hbase/wire":    {"engine/fault", "engine/schema", "compat/hbase/pb"},
	"compat/hbase/filter":  {"engine/fault", "compat/hbase/pb"},
	"compat/hbase/zk":      {},
	"compat/hbase/model":   and(leaves, []string{"compat/hbase/pb", "gateway/backend"}),
	"compat/hbase/server":  and(leaves, []string{"compat/hbase/...", "gateway/backend"}),
	"compat/hbase/master":  and(leaves, []string{"compat/hbase/...", "gateway/backend"}),
	"compat/hbase/backend": and(leaves, []string{"engine/plan", "compat/hbase/...", "gateway/backend"}),

	// The fake that is laid over another module knows nothing of this one.
	"conformance/sdk/external": {},
	"conformance/...":          {"engine/...", "gateway/...", "cluster/...", "compat/...", "conformance/..."},
	"cmd/...":                  {"engine/...", "gateway/...", "cluster/...", "compat/...", "cmd/..."},
}

// tests are the packages that exist for tests alone.
var tests = []string{"conformance/..."}

// An outside rule says who may import a package of somebody else.
type outside struct {
	// imports are what it is about: a path and all below it.
	imports []string
	// except are paths below that it is not about.
	except []string
	// only are those who may.
	only   []string
	reason string
}

var outsiders = []outside{
	{
		imports: []string{"github.com/cockroachdb/pebble/v2"},
		except:  []string{"github.com/cockroachdb/pebble/v2/vfs", "github.com/cockroachdb/pebble/v2/objstorage"},
		only:    []string{"engine/sstable"},
		reason:  "Pebble's SSTable, cache and Bloom packages stay behind engine/sstable: use or extend that package",
	},
	{
		imports: []string{"github.com/cockroachdb/pebble/v2/objstorage"},
		only:    []string{"engine/objectstore/...", "engine/sstable", "cluster/sim"},
		reason:  "stores of objects are reached through engine/objectstore",
	},
	{
		imports: []string{"github.com/minio/minio-go/v7"},
		only:    []string{"engine/objectstore/s3/..."},
		reason:  "S3 is spoken by engine/objectstore/s3",
	},
	{
		imports: []string{"google.golang.org/grpc", "google.golang.org/protobuf", "google.golang.org/genproto", "cloud.google.com/go"},
		except:  []string{"google.golang.org/protobuf/encoding/protowire"},
		only:    []string{"gateway/...", "cluster/...", "compat/...", "conformance/...", "cmd/..."},
		reason:  "the engine speaks its own types: translate in gateway/wire",
	},
	{
		imports: []string{"github.com/prometheus", "github.com/spf13/pflag", "github.com/spf13/cobra", "go.yaml.in/yaml/v3"},
		only:    []string{"cmd/...", "conformance/..."},
		reason:  "settings and metrics are joined to the packages in cmd: take an option or an observer instead",
	},
	{
		imports: []string{"testing", "pgregory.net/rapid", "github.com/anishathalye/porcupine", "go.uber.org/goleak"},
		only:    []string{"conformance/...", "engine/leaktest", "engine/loopback", "engine/datadir/datadirtest", "engine/objectstore/storetest", "engine/objectstore/s3/s3test", "engine/objectstore/hdfs/hdfstest", "cluster/sim", "cluster/lock/locktest"},
		reason:  "tests and their helpers do not belong into the server",
	},
}

// fits tells whether pattern, perhaps with /..., covers pkg.
func fits(pattern, pkg string) bool {
	base, all := strings.CutSuffix(pattern, "/...")
	return pkg == base || all && strings.HasPrefix(pkg, base+"/")
}

func covered(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return fits(p, pkg) })
}

// under tells whether path is one of roots or below one.
func under(roots []string, path string) bool {
	return slices.ContainsFunc(roots, func(r string) bool { return path == r || strings.HasPrefix(path, r+"/") })
}

// row finds the entry of the table for pkg.
func row(pkg string) (list []string, found bool) {
	longest := -1
	for pattern, l := range allowed {
		if fits(pattern, pkg) && len(pattern) > longest {
			list, longest = l, len(pattern)
		}
	}
	return list, longest >= 0
}

// Check returns what is wrong with the import of path by pkg, or "". Both are
// written without the module's path; ours tells whether path is this module's.
func Check(pkg, path string, ours bool) string {
	if !ours {
		for _, o := range outsiders {
			if under(o.imports, path) && !under(o.except, path) && !covered(o.only, pkg) {
				return fmt.Sprintf("%s imports %s: %s. It is for %s", pkg, path, o.reason, strings.Join(o.only, ", "))
			}
		}
		return ""
	}
	list, found := row(pkg)
	switch {
	case covered(tests, path) && !covered(tests, pkg):
		// No row can allow it.
		return fmt.Sprintf("%s imports %s: what conformance has is for tests, and nothing outside of tests and conformance imports it. "+
			"A helper that both need belongs into engine, or beside the command that uses it", pkg, path)
	case !found:
		return fmt.Sprintf("%s is in no row of the table in conformance/deptest: say there what it may import, and in ARCHITECTURE.md what it is for", pkg)
	case covered(list, path) || strings.HasPrefix(path, pkg+"/"):
		return ""
	case len(list) == 0:
		return fmt.Sprintf("%s imports %s: it may import nothing of ours. Let the caller pass in what is needed", pkg, path)
	}
	return fmt.Sprintf("%s imports %s: arrows point one way, and it may import only %s. Declare the interface that it needs where it needs it "+
		"(as gateway/backend does), or move the shared type into a leaf below both", pkg, path, strings.Join(list, ", "))
}
