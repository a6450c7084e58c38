package ops

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// TestCertificate: the end of a certificate is found behind a key in the same file.
func TestCertificate(t *testing.T) {
	s := httptest.NewTLSServer(nil)
	s.Close()
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("any")})
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	file := filepath.Join(t.TempDir(), "both.pem")
	for _, c := range []struct {
		text []byte
		good bool
	}{{cert, true}, {append(key[:len(key):len(key)], cert...), true}, {key, false}, {nil, false}} {
		if err := os.WriteFile(file, c.text, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := certificate(file); (got.Error == "") != c.good || c.good && !got.NotAfter.Equal(s.Certificate().NotAfter) {
			t.Errorf("%q: %+v", c.text, got)
		}
	}
}
