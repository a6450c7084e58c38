package docs

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const metricsPage = "docs/metrics.md"

// cloud has what Cloud Monitoring calls what some of our metrics tell, below
// bigtable.googleapis.com/.
var cloud = map[string]string{
	"bigtable_server_requests_total":        "`server/request_count`; with a `code` other than `OK` `server/error_count`",
	"bigtable_server_request_seconds":       "`server/latencies`",
	"bigtable_server_table_request_seconds": "`server/latencies`, by table",
	"bigtable_server_first_row_seconds":     "`client/first_response_latencies`, which clients measure",
	"bigtable_server_received_bytes_total":  "`server/received_bytes_count`",
	"bigtable_server_sent_bytes_total":      "`server/sent_bytes_count`",
	"bigtable_server_rows_returned_total":   "`server/returned_rows_count`",
	"bigtable_server_rows_modified_total":   "`server/modified_rows_count`",
	"bigtable_table_bytes":                  "`table/bytes_used`",
	"bigtable_tablet_bytes":                 "`disk/bytes_used`",
	"bigtable_disk_used_bytes":              "`cluster/storage_utilization`, as a part of used and free bytes",
	"bigtable_master_servers":               "`cluster/node_count`",
	"process_cpu_seconds_total":             "`cluster/cpu_load`, as its rate",
}

var (
	// A name with the text behind it, which may be in parts.
	metricHelp = regexp.MustCompile(`"(bigtable_[a-z_]*[a-z])",\s*(?:Help:\s*)?((?:"(?:[^"\\]|\\.)*"\s*\+?\s*)+)`)
	quoted     = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
)

// TestMetricsPage compares the page of metrics with the sources. With UPDATE_DOCS=1 it writes
// the page.
func TestMetricsPage(t *testing.T) {
	helps := map[string]string{"process_cpu_seconds_total": "Processor time of the process."}
	named := map[string]bool{}
	for _, file := range tree(t) {
		if !strings.HasPrefix(file, "cmd/") && !strings.HasPrefix(file, "cluster/") || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			continue
		}
		text := read(t, file)
		for _, m := range metricName.FindAllStringSubmatch(text, -1) {
			named[m[1]] = true
		}
		for _, m := range metricHelp.FindAllStringSubmatch(text, -1) {
			var help strings.Builder
			for _, q := range quoted.FindAllString(m[2], -1) {
				s, err := strconv.Unquote(q)
				if err != nil {
					t.Fatalf("%s: %s: %v", file, q, err)
				}
				help.WriteString(s)
			}
			helps[m[1]] = help.String()
		}
	}
	for name := range named {
		if helps[name] == "" {
			t.Errorf("no text of %s was found", name)
		}
	}
	for name := range cloud {
		if helps[name] == "" {
			t.Errorf("there is no metric %s", name)
		}
	}
	var b strings.Builder
	b.WriteString("# All metrics\n\nThis list is made of the sources: `UPDATE_DOCS=1 go test ./conformance/docs` writes it. " +
		"[The reference](operator-reference.md#metrics) has them by subject, with their labels. Beside these, `/metrics` has those of the Go runtime and the process (`go_…`, `process_…`).\n\n" +
		"The last column has what Cloud Monitoring calls the same, below `bigtable.googleapis.com/`. Its `app_profile`, `table` and `method` are labels of the same names here.\n\n" +
		"| metric | tells | Cloud Bigtable |\n|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(helps)) {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, strings.ReplaceAll(helps[name], "|", `\|`), cloud[name])
	}
	if os.Getenv("UPDATE_DOCS") != "" {
		if err := os.WriteFile(root+"/"+metricsPage, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, metricsPage) != b.String() {
		t.Errorf("%s is not what the sources say: run UPDATE_DOCS=1 go test ./conformance/docs", metricsPage)
	}
}
