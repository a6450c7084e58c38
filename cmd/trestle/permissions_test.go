package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/cluster/catalog"
	lock "github.com/trestledb/trestle/cluster/lock/etcd"
	emeta "github.com/trestledb/trestle/engine/metadata"
)

// wantOwners fails if anybody but the owner may do something with a file of a tree.
// It returns how many there are.
func wantOwners(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if os.IsNotExist(err) {
			return nil
		}
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is %v", path, info.Mode())
		}
		n++
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return n
}

// open gives everybody what earlier versions gave.
func open(t *testing.T, dir string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		mode := fs.FileMode(0o644)
		if err == nil && d.IsDir() {
			mode = 0o755
		}
		return os.Chmod(path, mode)
	}); err != nil {
		t.Fatal(err)
	}
}

// TestDataIsTheOwners: nobody but the user that a server runs as can read what it
// has, nor what an earlier version left.
func TestDataIsTheOwners(t *testing.T) {
	home := t.TempDir()
	dir := filepath.Join(home, "data")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "somebody-elses")
	for _, auth := range [][]string{{"--tls-auto", "--auth=on"}, {"--tls-auto", "--auth=on"}, {"--auth=off"}} {
		p := startTrestle(t, "real", home, append([]string{"serve", "--listen=127.0.0.1:0", "--http-listen=off", "--memory=64MiB", "--data-dir=" + dir}, auth...)...)
		p.line("Bigtable gRPC API")
		_ = os.Remove(other)
		if n := wantOwners(t, dir); n < 10 {
			t.Errorf("%d files", n)
		}
		p.signal(syscall.SIGTERM)
		if _, code, _ := p.exit(); code != 0 {
			t.Fatalf("exit code %d\n%s", code, p.stderr)
		}
		wantOwners(t, dir)
		open(t, dir)
		if err := os.WriteFile(other, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(other); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("what is not the server's: %v, %v", info.Mode(), err)
	}
}

func has(items map[string][]byte, key string) bool {
	_, ok := items[key]
	return ok
}

// TestStoreTellsNoSecret: neither what a cluster's servers keep on their machines
// nor the store is open to others, and a reader of the store cannot make a
// token with what is in it.
func TestStoreTellsNoSecret(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three processes")
	}
	c := startCluster(t, 0)
	data, cache := filepath.Join(c.dir, "server-1"), filepath.Join(c.dir, "cache")
	p := startTrestle(t, "real", c.dir, c.args("tabletserver", "--name=server-1", "--listen=127.0.0.1:0", "--http-listen=off", "--cluster-listen=127.0.0.1:0",
		"--store="+c.store, "--data-dir="+data, "--cache-dir="+cache, "--tls-auto", "--auth=on", "--audit-log=off")...)
	addr := strings.TrimSpace(p.line("Bigtable gRPC API"))
	creds, err := credentials.NewClientTLSFromFile(filepath.Join(data, "tls", "ca.pem"), "")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	try := func(secret []byte, key string) error {
		claims, err := json.Marshal(map[string]any{"k": key, "s": 15, "e": time.Now().Add(time.Hour).Unix()})
		if err != nil {
			t.Fatal(err)
		}
		signed := "trestle1." + base64.RawURLEncoding.EncodeToString(claims)
		h := hmac.New(sha256.New, secret)
		h.Write([]byte(signed))
		token := signed + "." + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
		_, err = adminpb.NewBigtableInstanceAdminClient(conn).ListInstances(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token),
			&adminpb.ListInstancesRequest{Parent: "projects/p"})
		return err
	}
	cl, err := clientv3.New(clientv3.Config{Endpoints: []string{c.etcd}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	held := lock.New([]*clientv3.Client{cl}, "trestle/test/")
	accounts, _, err := held.List(ctx, catalog.RecordsPrefix+"accounts/")
	if err != nil || len(accounts) != 1 {
		t.Fatalf("%d accounts, %v", len(accounts), err)
	}
	var root struct {
		Keys []struct {
			ID string `json:"id"`
		} `json:"keys"`
	}
	if err := json.Unmarshal(accounts[0].Value, &root); err != nil || len(root.Keys) != 1 {
		t.Fatalf("%s: %v", accounts[0].Value, err)
	}
	secret, err := held.Get(ctx, catalog.SecretsPrefix+"access-tokens")
	if err != nil {
		t.Fatal(err)
	}
	// The way of an owner of the secret: it shows that the others fail for want of it.
	if err := try(secret.Value, root.Keys[0].ID); err != nil {
		t.Fatalf("a token made with the secret: %v", err)
	}
	// A copy that has this has all that there was before.
	const last = catalog.RecordsPrefix + "test"
	if _, err := held.Put(ctx, last, nil, 0); err != nil {
		t.Fatal(err)
	}
	copies := filepath.Join(strings.TrimPrefix(c.store, "file://"), "etcd")
	var newest map[string][]byte
	for start := time.Now(); !has(newest, last); time.Sleep(50 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatal("the lock service is not copied")
		}
		names, err := os.ReadDir(copies)
		if err != nil || len(names) == 0 {
			continue
		}
		b, err := os.ReadFile(filepath.Join(copies, names[len(names)-1].Name()))
		if err != nil {
			continue
		}
		var cp catalog.Copy
		if err := emeta.DecodeChecked(b, "the copy", &cp); err != nil {
			t.Fatal(err)
		}
		newest = cp.Items
	}
	tries := 0
	for key, value := range newest {
		tries++
		if err := try(value, root.Keys[0].ID); status.Code(err) != codes.Unauthenticated {
			t.Errorf("a token made with %s: %v", key, err)
		}
	}
	if tries < 5 {
		t.Errorf("a copy has %d items", tries)
	}
	for _, dir := range []string{strings.TrimPrefix(c.store, "file://"), data, cache} {
		wantOwners(t, dir)
		if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil //nolint:nilerr // it was removed meanwhile
			}
			b, err := os.ReadFile(path)
			for _, form := range [][]byte{secret.Value, []byte(base64.StdEncoding.EncodeToString(secret.Value)), []byte(fmt.Sprintf("%x", secret.Value))} {
				if err == nil && bytes.Contains(b, form) {
					t.Errorf("%s has the secret", path)
				}
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}
