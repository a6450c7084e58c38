package servertls

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestJoin: directories that join have one authority; one that joins later leaves
// its own, and any of them brings it back when what they share was lost.
func TestJoin(t *testing.T) {
	var kept []byte
	share := func(own []byte) ([]byte, error) {
		if kept == nil {
			kept = own
		}
		return kept, nil
	}
	one, two := Auto{Dir: filepath.Join(t.TempDir(), "one")}, Auto{Dir: filepath.Join(t.TempDir(), "two")}
	if err := two.Ensure(); err != nil {
		t.Fatal(err) // it was alone before
	}
	before := read(t, two.CA())
	join := func(a Auto) {
		t.Helper()
		if err := a.Join(share); err != nil {
			t.Fatal(err)
		}
		if err := a.Ensure(); err != nil {
			t.Fatal(err)
		}
	}
	join(one)
	join(two)
	ca := read(t, one.CA())
	if bytes.Equal(before, ca) || !bytes.Equal(read(t, two.CA()), ca) {
		t.Error("two that joined have not the authority of the first")
	}
	leaf, err := load(two.path("server.pem"), two.path("server-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leaf.Leaf.Verify(x509.VerifyOptions{Roots: pool(t, one), DNSName: "localhost"}); err != nil {
		t.Errorf("who trusts the first does not trust the second: %v", err)
	}
	kept = nil
	join(two)
	join(one)
	if !bytes.Equal(read(t, one.CA()), ca) || !bytes.Equal(read(t, two.CA()), ca) {
		t.Error("the authority is another one after what was shared was lost")
	}
	kept = []byte("damaged")
	if err := one.Join(share); err == nil || !bytes.Equal(read(t, one.CA()), ca) {
		t.Errorf("joined with a damaged authority: %v", err)
	}
	if info, err := os.Stat(two.path("ca-key.pem")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key is for others: %v, %v", info.Mode(), err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestPeer: a pair is good for both ends of a connection, left alone while it is
// good, and made anew a month before it ends.
func TestPeer(t *testing.T) {
	now := time.Now()
	a := Auto{Dir: t.TempDir(), Now: func() time.Time { return now }}
	made, until, err := a.Peer("server-1")
	if err != nil || !made || until.Before(now.AddDate(1, 0, 0)) {
		t.Fatalf("%v, %v, %v", made, until, err)
	}
	pair, err := load(a.path("server-1.pem"), a.path("server-1-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool(t, a), KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Error(err)
		}
	}
	if made, _, err := a.Peer("server-1"); err != nil || made {
		t.Errorf("made again: %v, %v", made, err)
	}
	now = until.AddDate(0, 0, -20)
	if made, next, err := a.Peer("server-1"); err != nil || !made || !next.After(until) {
		t.Errorf("not made anew: %v, %v, %v", made, next, err)
	}
}
