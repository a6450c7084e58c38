package sdk

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
)

// javaSuites are classes of the tests that are published beside Java's client.
var javaSuites = []string{
	"com.google.cloud.bigtable.data.v2.it.ExecuteQueryIT",
	"com.google.cloud.bigtable.admin.v2.it.BigtableLogicalViewIT",
	"com.google.cloud.bigtable.admin.v2.it.BigtableMaterializedViewIT",
}

var javaResult = regexp.MustCompile(`(?m)^(pass|fail|skip) (\w+\.\w+) (.*)$`)

// TestJavaSystem runs what the integration tests of Java's client have about SQL and
// views, unchanged, as against the service itself: Google's names, TLS, a service
// account's key.
func TestJavaSystem(t *testing.T) {
	if _, err := exec.LookPath("mvn"); err != nil {
		t.Skip("mvn is not installed")
	}
	s, host := startAsGoogle(t)
	cc := s.dial(t, GoogleNames[1])
	createInstance(t, cc)
	if _, err := adminpb.NewBigtableTableAdminClient(cc).CreateTable(t.Context(), &adminpb.CreateTableRequest{Parent: "projects/" + Project + "/instances/" + Instance,
		TableId: "java", Table: &adminpb.Table{ColumnFamilies: map[string]*adminpb.ColumnFamily{"cf": {}}}}); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(workspace(t).Dir, "java")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	jars, trust := filepath.Join(dir, "classpath"), filepath.Join(t.TempDir(), "trust.p12")
	for _, line := range [][]string{
		{"mvn", "-q", "-B", "-f", "java/pom.xml", "dependency:build-classpath", "-Dmdep.outputFile=" + jars},
		{"keytool", "-importcert", "-noprompt", "-alias", "server", "-file", s.ca, "-keystore", trust, "-storepass", "changeit"},
	} {
		if out, err := exec.CommandContext(t.Context(), line[0], line[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", line, err, out)
		}
	}
	path, err := os.ReadFile(jars)
	if err != nil {
		t.Fatal(err)
	}
	line, err := leadHere(host, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	line = append(line, "java", "-cp", string(path), "-Djavax.net.ssl.trustStore="+trust, "-Djavax.net.ssl.trustStorePassword=changeit",
		"-Dbigtable.env=cloud", "-Dbigtable.project="+Project, "-Dbigtable.instance="+Instance, "-Dbigtable.table=java", "java/Suites.java")
	line = append(line, javaSuites...)
	cmd := exec.CommandContext(t.Context(), line[0], line[1:]...)
	cmd.Env = append(os.Environ(), "GOOGLE_APPLICATION_CREDENTIALS="+s.root)
	out, err := cmd.CombinedOutput()
	var results []Result
	for _, m := range javaResult.FindAllStringSubmatch(string(out), -1) {
		results = append(results, Result{Name: m[2], Outcome: m[1], Why: strings.TrimSpace(m[3])})
	}
	if compare(t, "java.txt", results); err != nil || t.Failed() {
		t.Errorf("%v\n%s", err, out)
	}
}
