package stream

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLS returns the configurations of mutual TLS between the servers of a cluster. With
// both, a process shows the certificate chain in certFile, and accepts only one signed by
// an authority in caFile. That authority signs for nothing but the cluster. Every holder
// of its certificates belongs to the cluster, whatever name is in them, so servers may
// change their addresses. The files are read again with each connection.
func TLS(certFile, keyFile, caFile string) (server, client *tls.Config, err error) {
	pair := func() (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil {
			return nil, fmt.Errorf("read the certificate of the cluster: %w", err)
		}
		return &c, nil
	}
	roots := func() (*x509.CertPool, error) {
		b, err := os.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("read the authority of the cluster: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("read the authority of the cluster: %s has no certificate", caFile)
		}
		return pool, nil
	}
	verify := func(usage x509.ExtKeyUsage) func(tls.ConnectionState) error {
		return func(s tls.ConnectionState) error {
			pool, err := roots()
			if err != nil {
				return err
			}
			if len(s.PeerCertificates) == 0 {
				return errors.New("no certificate of the cluster was shown")
			}
			o := x509.VerifyOptions{Roots: pool, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{usage}}
			for _, c := range s.PeerCertificates[1:] {
				o.Intermediates.AddCert(c)
			}
			_, err = s.PeerCertificates[0].Verify(o)
			return err
		}
	}
	if _, err = pair(); err != nil {
		return nil, nil, err
	}
	if _, err = roots(); err != nil {
		return nil, nil, err
	}
	server = &tls.Config{
		MinVersion:       tls.VersionTLS13,
		GetCertificate:   func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair() },
		ClientAuth:       tls.RequireAnyClientCert,
		VerifyConnection: verify(x509.ExtKeyUsageClientAuth),
	}
	client = &tls.Config{
		MinVersion:           tls.VersionTLS13,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair() },
		// The name is not checked; VerifyConnection does the rest.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection:   verify(x509.ExtKeyUsageServerAuth),
	}
	return server, client, nil
}
