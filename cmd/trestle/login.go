package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/auth"
)

// A login is how a command makes sure whom it speaks to, and says who it is.
type login struct {
	ca, creds string
	given     func() bool // creds was, as a flag
}

// flags adds the flags of l to f.
func (l *login) flags(f *pflag.FlagSet, p *process) {
	l.given = func() bool { return f.Changed("credentials") }
	f.StringVar(&l.creds, "credentials", env(p, "GOOGLE_APPLICATION_CREDENTIALS"), "`FILE` with a service account's key; by default $GOOGLE_APPLICATION_CREDENTIALS")
	f.StringVar(&l.ca, "ca", "", "`FILE` with the authorities of the server's certificate; by default those of the system, or $SSL_CERT_FILE")
}

// tls returns the configuration of a client.
func (l *login) tls() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if l.ca == "" {
		return cfg, nil
	}
	pem, err := os.ReadFile(l.ca)
	if err != nil {
		return nil, fmt.Errorf("read the authorities: %w", err)
	}
	if cfg.RootCAs = x509.NewCertPool(); !cfg.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no certificate in %s", l.ca)
	}
	return cfg, nil
}

// key returns the credentials, nil if there are none. With plaintext they are
// sent over connections without TLS too.
func (l *login) key(plaintext bool) (*auth.KeyCredentials, error) {
	if l.creds == "" {
		return nil, nil
	}
	file, err := os.ReadFile(l.creds)
	if err != nil {
		return nil, fmt.Errorf("read --credentials: %w", err)
	}
	return auth.NewKeyCredentials(file, plaintext)
}

// dial connects to the server at an address, as whoever l says.
func (l *login) dial(server string, plaintext bool) (*grpc.ClientConn, error) {
	opts := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(schema.MaxRow))}
	if !plaintext {
		cfg, err := l.tls()
		if err != nil {
			return nil, err
		}
		opts[0] = grpc.WithTransportCredentials(credentials.NewTLS(cfg))
	}
	key, err := l.key(plaintext)
	if err != nil {
		return nil, err
	}
	if key != nil {
		opts = append(opts, grpc.WithPerRPCCredentials(key))
	}
	return grpc.NewClient(server, opts...)
}
