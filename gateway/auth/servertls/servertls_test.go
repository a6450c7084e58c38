package servertls

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serve accepts connections with s and returns a function that connects and
// returns the server's certificate.
func serve(t *testing.T, s *Server) func(*tls.Config) (*x509.Certificate, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	creds := s.Credentials()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				if conn, _, err := creds.ServerHandshake(c); err == nil {
					_ = conn.Close()
				} else {
					_ = c.Close()
				}
			}()
		}
	}()
	return func(cfg *tls.Config) (*x509.Certificate, error) {
		cfg.NextProtos = []string{"h2"}
		c, err := tls.Dial("tcp", l.Addr().String(), cfg)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0], nil
	}
}

func pool(t *testing.T, a Auto) *x509.CertPool {
	t.Helper()
	b, err := os.ReadFile(a.CA())
	if err != nil {
		t.Fatal(err)
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(b) {
		t.Fatal("no certificate in ca.pem")
	}
	return p
}

func TestAuto(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "it's here")
	a := Auto{Dir: dir, Hosts: []string{"db.example.com", "10.1.2.3", "0.0.0.0", ""}}
	if err := a.Ensure(); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"ca-key.pem", "server-key.pem"} {
		info, err := os.Stat(filepath.Join(dir, f))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", f, info.Mode(), err)
		}
	}
	if e := a.Exports(); len(e) != 2 || !strings.HasPrefix(e[0], "export SSL_CERT_FILE='/") || !strings.Contains(e[0], `it'\''s`) {
		t.Error(e)
	}
	s, err := New(a.Options())
	if err != nil {
		t.Fatal(err)
	}
	dial := serve(t, s)
	for _, name := range []string{"localhost", "127.0.0.1", "::1", "db.example.com", "10.1.2.3"} {
		if _, err := dial(&tls.Config{RootCAs: pool(t, a), ServerName: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := dial(&tls.Config{RootCAs: pool(t, a), ServerName: "other.example.com"}); err == nil {
		t.Error("the certificate is good for any name")
	}
	if _, err := dial(&tls.Config{ServerName: "localhost"}); err == nil {
		t.Error("the authority is known to everybody")
	}
	if _, err := dial(&tls.Config{RootCAs: pool(t, a), ServerName: "localhost", MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is accepted")
	}

	// Nothing changes as long as nothing has to.
	before, _ := os.ReadFile(filepath.Join(dir, "server.pem"))
	authority, _ := os.ReadFile(a.CA())
	same := func() bool {
		t.Helper()
		if err := a.Ensure(); err != nil {
			t.Fatal(err)
		}
		now, _ := os.ReadFile(filepath.Join(dir, "server.pem"))
		ca, _ := os.ReadFile(a.CA())
		if string(ca) != string(authority) {
			t.Error("the authority changed: clients would have to be told")
		}
		ok := string(now) == string(before)
		before = now
		return ok
	}
	if !same() {
		t.Error("a good certificate was replaced")
	}
	a.Hosts = append(a.Hosts, "new.example.com")
	if same() {
		t.Error("the certificate has not the new name")
	}
	a.Now = func() time.Time { return time.Now().Add(serverLife - renewBefore + time.Hour) }
	if same() {
		t.Error("a certificate that ends soon was kept")
	}
	// A crash while the pair was replaced leaves a key that does not fit.
	a.Now = nil
	if err := os.WriteFile(filepath.Join(dir, "server-key.pem"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if same() {
		t.Error("a broken pair was kept")
	}
	// Without its key an authority is not replaced silently.
	if err := os.Remove(filepath.Join(dir, "ca-key.pem")); err != nil {
		t.Fatal(err)
	}
	if err := a.Ensure(); err == nil {
		t.Error("an authority without a key is good")
	}
}

func TestReload(t *testing.T) {
	one, two := Auto{Dir: filepath.Join(t.TempDir(), "1")}, Auto{Dir: filepath.Join(t.TempDir(), "2")}
	for _, a := range []Auto{one, two} {
		if err := a.Ensure(); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	use := func(a Auto) {
		t.Helper()
		for from, to := range map[string]string{"server-key.pem": key, "server.pem": cert} {
			b, err := os.ReadFile(filepath.Join(a.Dir, from))
			if err == nil {
				err = WriteFile(to, b)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	use(one)
	var log strings.Builder
	s, err := New(Options{CertFile: cert, KeyFile: key, CheckInterval: time.Nanosecond, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	dial := serve(t, s)
	is := func(a Auto) bool {
		_, err := dial(&tls.Config{RootCAs: pool(t, a), ServerName: "localhost"})
		return err == nil
	}
	if !is(one) || is(two) {
		t.Fatal("not the first certificate")
	}
	use(two)
	if is(one) || !is(two) {
		t.Error("not the second certificate")
	}
	// What cannot be read does not count.
	if err := os.WriteFile(cert, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !is(two) {
		t.Error("the server stopped for a bad file")
	}
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	if !is(two) {
		t.Error("the server stopped for a missing file")
	}
	use(one)
	if !is(one) {
		t.Error("not the first certificate again")
	}
	if !strings.Contains(log.String(), "certificates were not reloaded") {
		t.Error(log.String())
	}
	if s.Expires().Before(time.Now()) {
		t.Error(s.Expires())
	}
	c, err := s.HTTP().GetCertificate(nil)
	if err != nil || c.Leaf.CheckSignatureFrom(mustAuthority(t, one)) != nil {
		t.Error("HTTP has another certificate")
	}
}

func mustAuthority(t *testing.T, a Auto) *x509.Certificate {
	t.Helper()
	c, err := load(a.CA(), a.path("ca-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return c.Leaf
}

func TestOptions(t *testing.T) {
	a := Auto{Dir: t.TempDir()}
	if err := a.Ensure(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"no file":               func(o *Options) { o.CertFile = "nope" },
		"key for another":       func(o *Options) { o.KeyFile = a.path("ca-key.pem") },
		"no authorities":        func(o *Options) { o.RequireClient = true },
		"authorities are a key": func(o *Options) { o.ClientCAFile = a.path("ca-key.pem") },
	} {
		o := a.Options()
		change(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
