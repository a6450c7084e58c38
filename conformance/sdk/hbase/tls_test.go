package hbase

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/engine/loopback"
)

// An authority signs certificates of clients.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// file holds the certificate.
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := new(authority)
	a.cert, a.key, a.file = a.sign(t, "clients")
	return a
}

// sign makes a key and its certificate, both in one PEM file. The first one is
// the authority's own.
func (a *authority) sign(t *testing.T, name string) (*x509.Certificate, *ecdsa.PrivateKey, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	parent, signer := a.cert, a.key
	if parent == nil {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	out := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if a.cert != nil {
		out = append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), out...)
	}
	file := filepath.Join(t.TempDir(), name+".pem")
	if err := os.WriteFile(file, out, 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return c, key, file
}

// secured is a server, or a cluster, over TLS that asks who calls.
type secured struct {
	grpc, rpc string
	trust     string // file with the authorities of its certificates
	key       string // file with the key of the account that may do everything
}

// serveSecured starts one that believes certificates of ca.
func serveSecured(t *testing.T, bin string, ca *authority) (s secured) {
	t.Helper()
	dir := t.TempDir()
	args := []string{"--tls-auto", "--auth=on", "--audit-log=off", "--tls-client-ca", ca.file}
	if target.OnCluster() {
		c := target.ServeCluster(t, target.ClusterOptions{Dir: dir, Gateways: 1, HBase: true, Args: append(args, "--emulator=false")})
		s.grpc, s.rpc = c.Addrs[0], strings.Join(c.HBase, ",")
		dir = filepath.Join(dir, "*")
	} else {
		s.rpc = loopback.Addr(t)
		p, err := target.Start(t.Context(), target.Process{Binary: bin, Dir: dir, HTTP: "127.0.0.1:0",
			Args: append(args, "--hbase-listen", s.rpc, "--hbase-instance", "p/main")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Stop(10 * time.Second); err != nil {
				t.Errorf("stop the server: %v\n%s", err, p.Log())
			}
		})
		s.grpc = p.Addr
	}
	// Each server has made an authority, one of them the key.
	authorities, err := filepath.Glob(filepath.Join(dir, "tls", "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, file := range authorities {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	s.trust = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(s.trust, all, 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := filepath.Glob(filepath.Join(dir, "root-key.json"))
	if err != nil || len(keys) != 1 {
		t.Fatalf("keys %q, %v", keys, err)
	}
	s.key = keys[0]
	return s
}

// TestTLS runs HBase's client over TLS against a server that asks who calls: the
// client's certificate says it, and policies say what that caller may do.
func TestTLS(t *testing.T) {
	jars(t, "client")
	bin := os.Getenv(target.BinaryEnv)
	if bin == "" {
		t.Skip(target.BinaryEnv + " is not set")
	}
	ca := newAuthority(t)
	s := serveSecured(t, bin, ca)
	for member, role := range map[string]string{"user:olga": "roles/bigtable.admin", "user:rita": "roles/bigtable.reader"} {
		cmd := exec.CommandContext(t.Context(), bin, "iam", "--server", s.grpc, "--ca", s.trust, "--credentials", s.key,
			"policy", "add-binding", "projects/p", "--member", member, "--role", role)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	settings := func(who string) string {
		dir := t.TempDir()
		_, _, key := ca.sign(t, who)
		configuration(t, dir, map[string]string{
			"hbase.client.registry.impl":        "org.apache.hadoop.hbase.client.RpcConnectionRegistry",
			"hbase.client.bootstrap.servers":    s.rpc,
			"hbase.client.netty.tls.enabled":    "true",
			"hbase.rpc.tls.truststore.location": s.trust, "hbase.rpc.tls.truststore.type": "PEM",
			"hbase.rpc.tls.keystore.location": key, "hbase.rpc.tls.keystore.type": "PEM",
		})
		return dir
	}
	for _, c := range []struct{ who, may string }{{"olga", "owner"}, {"rita", "reader"}, {"nora", "none"}} {
		t.Run(c.may, func(t *testing.T) { java(t, settings(c.who), "Access.java", c.may) })
	}
	t.Run("smoke", func(t *testing.T) { java(t, settings("olga"), "Smoke.java", "rpc", s.rpc) })
}
