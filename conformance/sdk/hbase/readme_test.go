package hbase

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReadme runs the README's example for HBase's client as it stands there,
// but for the server's address.
func TestReadme(t *testing.T) {
	jars(t, "client")
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("(?s)```java\n(.*?)```").FindAllSubmatch(readme, -1)
	if len(m) != 1 {
		t.Fatalf("%d examples in Java", len(m))
	}
	rpc, _ := serve(t)
	const address = `"127.0.0.1:16020"`
	body := strings.Replace(string(m[0][1]), address, `"`+rpc+`"`, 1)
	if !strings.Contains(string(m[0][1]), address) {
		t.Fatal("the example has another address")
	}
	program := filepath.Join(t.TempDir(), "Readme.java")
	if err := os.WriteFile(program, []byte(`
		import org.apache.hadoop.conf.Configuration;
		import org.apache.hadoop.hbase.*;
		import org.apache.hadoop.hbase.client.*;
		import org.apache.hadoop.hbase.util.Bytes;
		public class Readme { public static void main(String[] args) throws Exception {
		`+body+`
		} }`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := java(t, "", program); strings.TrimSpace(out) != "hello" {
		t.Errorf("it prints %q", out)
	}
}
