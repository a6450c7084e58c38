package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// TestClusterCerts: servers of a cluster talk by the certificates that `trestle
// cluster certs` makes, and clients who trust the authority of one of them trust
// all: with --tls-auto they have the same.
func TestClusterCerts(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"certs", exitUsage, "certs takes DIR NAME..."},
		{"certs DIR", exitUsage, "certs takes DIR NAME..."},
		{"certs DIR ca", exitFailure, "cannot be the name"},
		{"certs DIR a-key", exitFailure, "cannot be the name"},
		{"certs DIR processes", exitOK, "processes: made, good until .* --cluster-ca /.*/ca.pem --cluster-cert /.*/processes.pem"},
		{"certs DIR processes other", exitOK, "processes: is there, (?s).*other: made"},
	} {
		out, errs, code := tool(t, dir, strings.Fields("cluster "+strings.ReplaceAll(c.args, "DIR", "certs"))...)
		if code != c.code || !regexp.MustCompile(c.says).MatchString(out+errs) {
			t.Errorf("%s: exit code %d\n%s%s", c.args, code, out, errs)
		}
	}
	if testing.Short() {
		t.Skip("starts five processes")
	}
	at := func(name string) string { return filepath.Join(dir, "certs", name) }
	c := startCluster(t, 2, func(c *testCluster) {
		c.secure = []string{"--cluster-ca=" + at("ca.pem"), "--cluster-cert=" + at("processes.pem"), "--cluster-key=" + at("processes-key.pem")}
		c.extra = func(string) []string { return []string{"--tls-auto"} }
	})
	authority := func(server string) string {
		b, err := os.ReadFile(filepath.Join(c.dir, server, "tls", "ca.pem"))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	ca := authority("server-1")
	if ca != authority("server-2") {
		t.Error("servers have different authorities")
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(ca))
	security := option.WithGRPCDialOption(grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool})))
	for i, server := range []string{"server-1", "server-2"} {
		o := []option.ClientOption{option.WithEndpoint(c.addrs[server]), option.WithoutAuthentication(), security}
		admin, err := bigtable.NewAdminClient(t.Context(), "p", "i", o...)
		if err != nil {
			t.Fatal(err)
		}
		defer admin.Close()
		// Half of the tablets are on the other server.
		name := fmt.Sprintf("t%d", i)
		err = admin.CreateTableFromConf(t.Context(), &bigtable.TableConf{TableID: name, SplitKeys: []string{"d", "g", "j"}, Families: map[string]bigtable.GCPolicy{"f": bigtable.NoGcPolicy()}})
		if err != nil {
			t.Fatal(err)
		}
		client, err := bigtable.NewClientWithConfig(t.Context(), "p", "i", bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, o...)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		for _, key := range []string{"a", "e", "h", "k"} {
			m := bigtable.NewMutation()
			m.Set("f", "q", 1000, []byte("v"))
			if err := client.Open(name).Apply(t.Context(), key, m); err != nil {
				t.Fatal(err)
			}
		}
	}
}
