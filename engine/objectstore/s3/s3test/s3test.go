package s3test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/trestledb/trestle/engine/loopback"
	"github.com/trestledb/trestle/engine/objectstore/s3"
)

const (
	bucket = "bucket"
	key    = "trestle-test-key"
	secret = "trestle-test-secret"
)

// Fake starts an S3 server in this process, which keeps objects in memory and
// has an empty bucket. change, if not nil, comes between.
func Fake(t testing.TB, change func(http.Handler) http.Handler) s3.Options {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket(bucket); err != nil {
		t.Fatal(err)
	}
	h := gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	if change != nil {
		h = change(h)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return options(t, strings.TrimPrefix(srv.URL, "http://"))
}

func options(t testing.TB, endpoint string) s3.Options {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	t.Cleanup(transport.CloseIdleConnections)
	return s3.Options{Endpoint: endpoint, Insecure: true, Bucket: bucket, AccessKey: key, SecretKey: secret,
		SpoolDir: t.TempDir(), Transport: transport}
}

// MinIO starts a MinIO server with an empty bucket on a directory of the test.
// The environment variable TRESTLE_TEST_MINIO says which: the path of the
// program, "path" for the one in PATH, "build" to build the newest version once
// into the user's cache directory, which takes some minutes. Without it the test
// is skipped.
func MinIO(t testing.TB) s3.Options {
	t.Helper()
	program := os.Getenv("TRESTLE_TEST_MINIO")
	switch program {
	case "":
		t.Skip("TRESTLE_TEST_MINIO is not set")
	case "path":
		program = "minio"
	case "build":
		program = build(t)
	}
	endpoint := loopback.Addr(t)
	cmd := exec.Command(program, "server", "--quiet", "--address", endpoint, "--console-address", "127.0.0.1:0", t.TempDir())
	cmd.Env = append(os.Environ(), "MINIO_ROOT_USER="+key, "MINIO_ROOT_PASSWORD="+secret, "MINIO_UPDATE=off")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatalf("start MinIO: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	o := options(t, endpoint)
	client, err := minio.New(endpoint, &minio.Options{Creds: credentials.NewStaticV4(key, secret, ""), Transport: o.Transport})
	if err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err = client.MakeBucket(ctx, bucket, minio.MakeBucketOptions{})
		cancel()
		// An attempt that was given up may have made it.
		if err == nil || minio.ToErrorResponse(err).Code == minio.BucketAlreadyOwnedByYou {
			return o
		}
		if time.Since(start) > time.Minute {
			t.Fatalf("MinIO does not answer: %v\n%s", err, out.String())
		}
	}
}

// build returns the program in the user's cache directory, built if need be.
func build(t testing.TB) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "trestle-test")
	program := filepath.Join(dir, "minio")
	if _, err := os.Stat(program); err == nil {
		return program
	}
	cmd := exec.Command("go", "install", "github.com/minio/minio@latest")
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatal(fmt.Errorf("build MinIO: %w\n%s", err, out))
	}
	return program
}
