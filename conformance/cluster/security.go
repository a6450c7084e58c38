package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/trestledb/trestle/gateway/auth"
)

// Security names files in PEM: an authority, a certificate of it for one
// host, and its key.
type Security struct{ CA, Cert, Key string }

// NewSecurity makes the files in dir, for processes at an IP address.
func NewSecurity(dir, host string) (*Security, error) {
	ca, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "process of a test"},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.ParseIP(host)}}
	signed, err := x509.CreateCertificate(rand.Reader, authority, authority, ca.Public(), ca)
	if err != nil {
		return nil, err
	}
	cert, err := x509.CreateCertificate(rand.Reader, leaf, authority, key.Public(), ca)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	s := &Security{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	for file, b := range map[string]*pem.Block{s.CA: {Type: "CERTIFICATE", Bytes: signed}, s.Cert: {Type: "CERTIFICATE", Bytes: cert}, s.Key: {Type: "PRIVATE KEY", Bytes: private}} {
		err = errors.Join(err, os.WriteFile(file, pem.EncodeToMemory(b), 0o600))
	}
	return s, err
}

func (s *Security) flags() []string {
	return []string{"--etcd-ca=" + s.CA, "--etcd-cert=" + s.Cert, "--etcd-key=" + s.Key,
		"--cluster-ca=" + s.CA, "--cluster-cert=" + s.Cert, "--cluster-key=" + s.Key}
}

// Login returns options for connections of the account that may do everything,
// whose key one of the processes has made.
func (c *Cluster) Login() ([]grpc.DialOption, error) {
	keys, err := filepath.Glob(filepath.Join(c.o.Dir, "*", "root-key.json"))
	if err != nil || len(keys) != 1 {
		return nil, fmt.Errorf("%d processes have made a first key: %v, %w", len(keys), keys, err)
	}
	b, err := os.ReadFile(keys[0])
	if err != nil {
		return nil, err
	}
	who, err := auth.NewKeyCredentials(b, false)
	if err != nil {
		return nil, err
	}
	wire, err := c.wire()
	return append(wire, grpc.WithPerRPCCredentials(who)), err
}

// wire returns the option to connect to the processes without login.
func (c *Cluster) wire() ([]grpc.DialOption, error) {
	b, err := os.ReadFile(c.o.Security.CA)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(b)
	return []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}))}, nil
}

// MakeInstance makes an instance through a server that takes no instance for
// granted.
func MakeInstance(ctx context.Context, addr, project, instance string, o ...grpc.DialOption) error {
	conn, err := grpc.NewClient(addr, o...)
	if err != nil {
		return err
	}
	defer conn.Close()
	admin, err := bigtable.NewInstanceAdminClient(ctx, project, option.WithGRPCConn(conn))
	if err != nil {
		return err
	}
	return admin.CreateInstance(ctx, &bigtable.InstanceConf{InstanceId: instance, DisplayName: instance, ClusterId: instance + "-c1", Zone: "us-east1-b", NumNodes: 1, StorageType: bigtable.SSD})
}
