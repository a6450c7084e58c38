package servertls

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// How long what Auto makes is good for. A certificate is made anew when less
// than renewBefore is left of it.
const (
	authorityLife = 10 * 365 * 24 * time.Hour
	serverLife    = 398 * 24 * time.Hour // the most that clients of public authorities accept
	renewBefore   = 30 * 24 * time.Hour
)

// Auto keeps a private authority, and a server certificate that it signed, in a
// directory: ca.pem, ca-key.pem, server.pem, server-key.pem. Keys can be read
// by their owner only.
type Auto struct {
	Dir string
	// Hosts are names and addresses of the server beside localhost and the
	// machine's own name.
	Hosts []string
	// Now is time.Now if nil.
	Now func() time.Time
}

// CA returns the path of the authority's certificate, which clients must trust.
func (a Auto) CA() string { return filepath.Join(a.Dir, "ca.pem") }

// Options returns where the server's certificate is; Ensure renews it there.
func (a Auto) Options() Options {
	return Options{CertFile: a.path("server.pem"), KeyFile: a.path("server-key.pem"), Refresh: a.Ensure}
}

// Exports returns shell commands that make clients trust the authority.
func (a Auto) Exports() []string {
	path, err := filepath.Abs(a.CA())
	if err != nil {
		path = a.CA()
	}
	return []string{"export SSL_CERT_FILE=" + Quote(path), "export GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=" + Quote(path)}
}

// Quote writes s as one word of a POSIX shell.
func Quote(s string) string {
	for _, r := range s {
		if !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '/' || r == '.' || r == '_' || r == '-') {
			out := "'"
			for _, r := range s {
				if r == '\'' {
					out += `'\''`
				} else {
					out += string(r)
				}
			}
			return out + "'"
		}
	}
	return s
}

func (a Auto) path(name string) string { return filepath.Join(a.Dir, name) }

func (a Auto) now() time.Time {
	if a.Now == nil {
		return time.Now()
	}
	return a.Now()
}

// Ensure makes what is missing, for other names, or soon to end. It is cheap
// when there is nothing to do.
func (a Auto) Ensure() error {
	ca, err := a.authority()
	if err != nil {
		return err
	}
	cert, err := load(a.path("server.pem"), a.path("server-key.pem"))
	if err == nil && a.good(cert.Leaf, ca.Leaf) {
		return nil
	}
	// A certificate that cannot be read is replaced too: whatever it was, it was
	// made here.
	if err := a.makeServer(ca); err != nil {
		return fmt.Errorf("make a server certificate: %w", err)
	}
	return nil
}

// authority returns that of the directory, which it makes if there is none.
func (a Auto) authority() (tls.Certificate, error) {
	ca, err := load(a.CA(), a.path("ca-key.pem"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Perhaps there is a key: it was written just before a crash.
		if err := os.MkdirAll(a.Dir, 0o700); err != nil {
			return ca, fmt.Errorf("make a certificate authority: %w", err)
		}
		if ca, err = a.makeAuthority(); err != nil {
			return ca, fmt.Errorf("make a certificate authority: %w", err)
		}
	case err != nil:
		return ca, fmt.Errorf("load the certificate authority: %w", err)
	}
	return ca, nil
}

// Join makes the authority of the directory that of several servers. share is
// called with the directory's own, key and certificate in PEM, and returns the
// one that all have: the same, if there was none. A later Ensure makes a
// certificate of it. Call Join before Ensure, at each start: what is shared may
// have been lost, and each directory can bring it back.
func (a Auto) Join(share func(own []byte) ([]byte, error)) error {
	if _, err := a.authority(); err != nil {
		return err
	}
	key, err := os.ReadFile(a.path("ca-key.pem"))
	if err != nil {
		return fmt.Errorf("read the certificate authority: %w", err)
	}
	cert, err := os.ReadFile(a.CA())
	if err != nil {
		return fmt.Errorf("read the certificate authority: %w", err)
	}
	own := slices.Concat(key, cert)
	all, err := share(own)
	if err != nil || bytes.Equal(all, own) {
		return err
	}
	pair, err := tls.X509KeyPair(all, all)
	if err != nil {
		return fmt.Errorf("the certificate authority that is shared: %w", err)
	}
	private, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return errors.New("the certificate authority that is shared is none of this program's")
	}
	return writePair(a.CA(), a.path("ca-key.pem"), pair.Certificate[0], private)
}

// Peer makes a pair in the directory, NAME.pem and NAME-key.pem, for a process
// that shows it to others of its kind, as server and as client. Whatever the
// authority has signed belongs to them. made is false if there is one already
// that is good for more than a month; until is when it ends.
func (a Auto) Peer(name string) (made bool, until time.Time, err error) {
	ca, err := a.authority()
	if err != nil {
		return false, time.Time{}, err
	}
	cert, err := load(a.path(name+".pem"), a.path(name+"-key.pem"))
	if err == nil && cert.Leaf.CheckSignatureFrom(ca.Leaf) == nil && cert.Leaf.NotAfter.Sub(a.now()) >= renewBefore {
		return false, cert.Leaf.NotAfter, nil
	}
	t, err := a.leaf(ca.Leaf, "Trestle "+name, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
	if err == nil {
		t.DNSNames = []string{name}
		err = a.sign(t, ca, name)
	}
	if err != nil {
		return false, time.Time{}, fmt.Errorf("make the certificate of %s: %w", name, err)
	}
	return true, t.NotAfter, nil
}

// load reads a pair. It fails with fs.ErrNotExist only if the certificate is
// not there.
func load(certFile, keyFile string) (tls.Certificate, error) {
	if _, err := os.Stat(certFile); err != nil {
		return tls.Certificate{}, err
	}
	if _, err := os.Stat(keyFile); err != nil {
		return tls.Certificate{}, fmt.Errorf("%s has no key: %s", certFile, err.Error()) // it is not fs.ErrNotExist
	}
	return tls.LoadX509KeyPair(certFile, keyFile)
}

func (a Auto) good(c, ca *x509.Certificate) bool {
	if c.CheckSignatureFrom(ca) != nil || c.NotAfter.Sub(a.now()) < renewBefore {
		return false
	}
	for _, h := range a.hosts() {
		if ip := net.ParseIP(h); ip != nil {
			if !slices.ContainsFunc(c.IPAddresses, ip.Equal) {
				return false
			}
		} else if !slices.Contains(c.DNSNames, h) {
			return false
		}
	}
	return true
}

func (a Auto) hosts() []string {
	out := []string{"localhost", "127.0.0.1", "::1"}
	if name, err := os.Hostname(); err == nil && name != "" {
		out = append(out, name)
	}
	for _, h := range a.Hosts {
		// What listens everywhere is reached by some other name.
		if ip := net.ParseIP(h); h != "" && (ip == nil || !ip.IsUnspecified()) && !slices.Contains(out, h) {
			out = append(out, h)
		}
	}
	return out
}

func serial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}

func (a Auto) makeAuthority() (out tls.Certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return out, err
	}
	n, err := serial()
	if err != nil {
		return out, err
	}
	t := &x509.Certificate{
		SerialNumber:          n,
		Subject:               pkix.Name{CommonName: "Trestle private CA " + n.Text(36)[:6]},
		NotBefore:             a.now().Add(-time.Hour),
		NotAfter:              a.now().Add(authorityLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return out, err
	}
	if err := writePair(a.CA(), a.path("ca-key.pem"), der, key); err != nil {
		return out, err
	}
	return load(a.CA(), a.path("ca-key.pem"))
}

func (a Auto) makeServer(ca tls.Certificate) error {
	t, err := a.leaf(ca.Leaf, "Trestle server", x509.ExtKeyUsageServerAuth)
	if err != nil {
		return err
	}
	for _, h := range a.hosts() {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	return a.sign(t, ca, "server")
}

// leaf returns a certificate to be signed, which does not outlive its authority.
func (a Auto) leaf(ca *x509.Certificate, subject string, usages ...x509.ExtKeyUsage) (*x509.Certificate, error) {
	n, err := serial()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: n,
		Subject:      pkix.Name{CommonName: subject},
		NotBefore:    a.now().Add(-time.Hour),
		NotAfter:     a.now().Add(serverLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  usages,
	}
	if t.NotAfter.After(ca.NotAfter) {
		t.NotAfter = ca.NotAfter
	}
	return t, nil
}

// sign signs t for a new key, and writes the pair of a name.
func (a Auto) sign(t *x509.Certificate, ca tls.Certificate, name string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		return err
	}
	return writePair(a.path(name+".pem"), a.path(name+"-key.pem"), der, key)
}

// writePair writes the key first: a reader that sees the new certificate sees
// its key too, and one that comes in between fails and keeps what it has.
func writePair(certFile, keyFile string, der []byte, key *ecdsa.PrivateKey) error {
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k})); err != nil {
		return err
	}
	return WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// WriteFile replaces a file durably: a crash leaves the old or the new one. The
// new one is the owner's only.
func WriteFile(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
