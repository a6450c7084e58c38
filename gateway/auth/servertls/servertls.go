package servertls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

// Options say where certificates are.
type Options struct {
	// CertFile and KeyFile hold the server's chain and key in PEM.
	CertFile, KeyFile string
	// ClientCAFile holds the authorities of client certificates in PEM. Empty
	// means that clients are not asked for one.
	ClientCAFile string
	// RequireClient refuses clients without a certificate.
	RequireClient bool
	// Refresh, if not nil, is called before the files are looked at, now and
	// then; it may replace them. See Auto.
	Refresh func() error
	// CheckInterval is how long a change of the files may go unnoticed. Zero
	// means 1 s.
	CheckInterval time.Duration
	// Log is slog.Default if nil.
	Log *slog.Logger
}

// A Server has the current certificates. Files are looked at when a client
// connects; when a new state of them cannot be read, the old one stays.
type Server struct {
	o       Options
	current atomic.Pointer[state]
	checked atomic.Int64 // UnixNano
	mu      sync.Mutex   // held while files are read
}

type state struct {
	config *tls.Config
	stamps [3]stamp
}

// A stamp tells states of a file apart.
type stamp struct {
	modified time.Time
	size     int64
}

// New reads the files.
func New(o Options) (*Server, error) {
	if o.CheckInterval == 0 {
		o.CheckInterval = time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.RequireClient && o.ClientCAFile == "" {
		return nil, errors.New("client certificates are required, but there is no file of their authorities")
	}
	s := &Server{o: o}
	if err := s.reload(); err != nil {
		return nil, err
	}
	s.checked.Store(time.Now().UnixNano())
	return s, nil
}

func (s *Server) stamps() (out [3]stamp, err error) {
	for i, f := range []string{s.o.CertFile, s.o.KeyFile, s.o.ClientCAFile} {
		if f == "" {
			continue
		}
		info, err := os.Stat(f)
		if err != nil {
			return out, err
		}
		out[i] = stamp{info.ModTime(), info.Size()}
	}
	return out, nil
}

// reload reads the files if they have changed.
func (s *Server) reload() error {
	if s.o.Refresh != nil {
		if err := s.o.Refresh(); err != nil {
			return err
		}
	}
	stamps, err := s.stamps()
	if err != nil {
		return fmt.Errorf("look at certificates: %w", err)
	}
	old := s.current.Load()
	if old != nil && old.stamps == stamps {
		return nil
	}
	cert, err := tls.LoadX509KeyPair(s.o.CertFile, s.o.KeyFile)
	if err != nil {
		return fmt.Errorf("load certificate %s with key %s: %w", s.o.CertFile, s.o.KeyFile, err)
	}
	config := &tls.Config{
		Certificates: []tls.Certificate{cert},
		MinVersion:   tls.VersionTLS12,
	}
	if s.o.ClientCAFile != "" {
		pem, err := os.ReadFile(s.o.ClientCAFile)
		if err != nil {
			return fmt.Errorf("load client authorities: %w", err)
		}
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("load client authorities: no certificate in %s", s.o.ClientCAFile)
		}
		config.ClientAuth = tls.VerifyClientCertIfGiven
		if s.o.RequireClient {
			config.ClientAuth = tls.RequireAndVerifyClientCert
		}
		// A resumed session would outlive the authorities that it was verified
		// against.
		config.SessionTicketsDisabled = true
	}
	s.current.Store(&state{config, stamps})
	if old != nil {
		s.o.Log.LogAttrs(context.Background(), slog.LevelInfo, "certificates reloaded", slog.String("file", s.o.CertFile), slog.Time("expires", cert.Leaf.NotAfter))
	}
	return nil
}

// config returns the current configuration. One caller at a time looks at the
// files; others meanwhile take what there is.
func (s *Server) config() *tls.Config {
	now := time.Now().UnixNano()
	if now-s.checked.Load() >= int64(s.o.CheckInterval) && s.mu.TryLock() {
		if err := s.reload(); err != nil {
			s.o.Log.LogAttrs(context.Background(), slog.LevelWarn, "certificates were not reloaded", slog.String("error", err.Error()))
		}
		s.checked.Store(now)
		s.mu.Unlock()
	}
	return s.current.Load().config
}

// Expires returns when the current certificate ends.
func (s *Server) Expires() time.Time {
	return s.current.Load().config.Certificates[0].Leaf.NotAfter
}

// HTTP returns a configuration for HTTP servers, which follows the files as
// Credentials do but asks clients for no certificate.
func (s *Server) HTTP() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return &s.config().Certificates[0], nil
		},
	}
}

// TLS returns a configuration for servers of other protocols, which follows the
// files and asks clients for certificates as Credentials do.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.config(), nil },
	}
}

// Credentials returns credentials for a gRPC server. The AuthInfo of its
// connections is a *Conn.
func (s *Server) Credentials() credentials.TransportCredentials {
	return creds{credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return s.config(), nil
		},
	})}
}

type creds struct {
	credentials.TransportCredentials
}

func (c creds) Clone() credentials.TransportCredentials {
	return creds{c.TransportCredentials.Clone()}
}

// ServerHandshake names the client once per connection.
func (c creds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	t, ok := info.(credentials.TLSInfo)
	if !ok {
		return conn, info, nil
	}
	out := &Conn{TLSInfo: t}
	if len(t.State.VerifiedChains) > 0 {
		leaf := t.State.VerifiedChains[0][0]
		out.Client, out.Expires = Name(leaf), leaf.NotAfter
	}
	return conn, out, nil
}

// A Conn is what TLS knows about a connection.
type Conn struct {
	credentials.TLSInfo
	// Client is the Name of the client's certificate, empty if it has none.
	Client string
	// Expires is when that certificate ends.
	Expires time.Time
}

// Name returns the subject of a client's certificate: its first URI, else its
// first e-mail address, else its common name; empty if it has none of them.
func Name(c *x509.Certificate) string {
	switch {
	case len(c.URIs) > 0:
		return c.URIs[0].String()
	case len(c.EmailAddresses) > 0:
		return c.EmailAddresses[0]
	}
	return c.Subject.CommonName
}
