package s3

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

const (
	nonceKey = "Trestle-Nonce" // of the metadata of an object

	// putAttempts is how often a PUT is made whose outcome is not known, or that
	// the server was too busy for.
	putAttempts = 5
	retryFirst  = 50 * time.Millisecond
	retryMost   = time.Second

	maxObjectBytes = 5 << 30
	// finishTime bounds Finish, which has no context.
	finishTime = 10 * time.Minute
)

// Options say where the bucket is.
type Options struct {
	// Endpoint is the host of the service, with a port if need be, as in
	// "s3.eu-west-1.amazonaws.com" or "minio:9000".
	Endpoint string
	// Insecure speaks HTTP instead of HTTPS.
	Insecure bool
	// Region of the bucket. Default "us-east-1".
	Region string
	// Bucket must exist.
	Bucket string
	// Prefix, if not empty, is put with a slash before the names of all objects.
	Prefix string
	// AccessKey and SecretKey are the credentials. If both are empty, those of the
	// environment are used: AWS_ACCESS_KEY_ID and so on, the shared credentials
	// file, the role of the machine.
	AccessKey, SecretKey string
	// SpoolDir is where an object lies on disk until all of it is written. Default:
	// the system's directory for temporary files.
	SpoolDir string
	// Transport, if set, carries the requests.
	Transport http.RoundTripper
}

// Store is an objectstore.Store in a bucket.
type Store struct {
	bucket, prefix, spool string
	insecure              bool
	// once makes each request once: a put has to know how often it was made, and whether
	// an earlier attempt may still be on its way. again repeats requests that fail for the
	// moment.
	once, again minio.Core
}

var _ objectstore.BulkDeleter = (*Store)(nil)

// Open returns the store in a bucket, or fault.FailedPrecondition if there is no
// such bucket.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.Prefix != "" {
		if err := objectstore.CheckName(o.Prefix); err != nil {
			return nil, err
		}
		o.Prefix += "/"
	}
	if o.Region == "" {
		o.Region = "us-east-1"
	}
	creds := credentials.NewStaticV4(o.AccessKey, o.SecretKey, "")
	if o.AccessKey == "" && o.SecretKey == "" {
		creds = credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{},
		})
	}
	s := &Store{bucket: o.Bucket, prefix: o.Prefix, spool: o.SpoolDir, insecure: o.Insecure}
	for retries, c := range map[int]*minio.Core{1: &s.once, putAttempts: &s.again} {
		client, err := minio.New(o.Endpoint, &minio.Options{
			Creds: creds, Secure: !o.Insecure, Region: o.Region, MaxRetries: retries, Transport: o.Transport,
		})
		if err != nil {
			return nil, fault.New(fault.Invalid, "open S3 store at %q: %w", o.Endpoint, err)
		}
		c.Client = client
	}
	ok, err := s.again.BucketExists(ctx, o.Bucket)
	if err != nil {
		return nil, wrap(err, "open bucket", o.Bucket)
	}
	if !ok {
		return nil, fault.New(fault.FailedPrecondition, "bucket %s does not exist", o.Bucket)
	}
	return s, nil
}

func check(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return objectstore.CheckName(name)
}

// PutIfAbsent implements objectstore.Store.
func (s *Store) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	if err := check(ctx, name); err != nil {
		return err
	}
	// One signature of everything costs less than one of each 64 KiB, which is how
	// a body is sent whose hash is not known. TLS needs none.
	hash := ""
	if s.insecure {
		sum := sha256.Sum256(data)
		hash = hex.EncodeToString(sum[:])
	}
	return s.put(ctx, name, int64(len(data)), hash, func() io.Reader { return bytes.NewReader(data) })
}

// put stores an object that body reads from its start. hash is its SHA-256, in
// hexadecimal; empty if that is not known.
func (s *Store) put(ctx context.Context, name string, size int64, hash string, body func() io.Reader) error {
	if size > maxObjectBytes {
		return fault.New(fault.Invalid, "put object %s: %d bytes are more than %d", name, size, int64(maxObjectBytes))
	}
	nonce := rand.Text()
	opts := minio.PutObjectOptions{DisableMultipart: true, DisableContentSha256: hash != "", UserMetadata: map[string]string{nonceKey: nonce}}
	opts.SetMatchETagExcept("*")
	unknown := false // whether an attempt may have succeeded
	delay := retryFirst
	for attempt := 1; ; attempt++ {
		content := body()
		if size == 0 {
			// An empty body that is signed in chunks has no length for some servers.
			content, opts.DisableContentSha256 = nil, true
		}
		_, err := s.once.PutObject(ctx, s.bucket, s.prefix+name, content, size, "", hash, opts)
		if err == nil {
			return nil
		}
		code := minio.ToErrorResponse(err)
		switch {
		case code.StatusCode == http.StatusPreconditionFailed:
			if unknown {
				mine, err := s.isMine(ctx, name, nonce)
				if mine || err != nil {
					return err
				}
			}
			return fault.New(fault.AlreadyExists, "object %s already exists", name)
		case code.StatusCode == http.StatusConflict:
			// Another PUT of the name is under way, and may yet fail.
		case code.StatusCode == 0 || code.StatusCode >= 500 || code.StatusCode == http.StatusTooManyRequests ||
			code.StatusCode == http.StatusRequestTimeout:
			unknown = true
		default:
			return wrap(err, "put object", name)
		}
		if attempt == putAttempts || ctx.Err() != nil || fault.KindOf(wrap(err, "", "")) == fault.Exhausted {
			return wrap(err, "put object", name)
		}
		select {
		case <-time.After(delay):
			delay = min(2*delay, retryMost)
		case <-ctx.Done():
		}
	}
}

// isMine reports whether the object of that name was put with nonce.
func (s *Store) isMine(ctx context.Context, name, nonce string) (bool, error) {
	info, err := s.again.StatObject(ctx, s.bucket, s.prefix+name, minio.StatObjectOptions{})
	if err != nil {
		return false, wrap(err, "look at object", name)
	}
	return info.UserMetadata[nonceKey] == nonce, nil
}

// Create implements objectstore.Store. The object is spooled on disk.
func (s *Store) Create(ctx context.Context, name string) (objstorage.Writable, error) {
	if err := check(ctx, name); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(s.spool, "trestle-object-")
	if err != nil {
		return nil, wrap(err, "create object", name)
	}
	// Nothing is left behind, however the process ends.
	if err := os.Remove(f.Name()); err != nil {
		return nil, wrap(errors.Join(err, f.Close()), "create object", name)
	}
	return &writable{s: s, name: name, f: f}, nil
}

// writable implements objstorage.Writable.
type writable struct {
	s    *Store
	name string
	f    *os.File
	size int64
	err  error // the first failure
}

func (w *writable) Write(p []byte) error {
	if w.err == nil {
		var n int
		n, w.err = w.f.Write(p)
		w.size += int64(n)
	}
	return wrap(w.err, "write object", w.name)
}

func (w *writable) Finish() error {
	defer w.f.Close()
	if w.err != nil {
		return wrap(w.err, "finish object", w.name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), finishTime)
	defer cancel()
	return w.s.put(ctx, w.name, w.size, "", func() io.Reader { return io.NewSectionReader(w.f, 0, w.size) })
}

func (w *writable) Abort() { _ = w.f.Close() }

// Get implements objectstore.Store.
func (s *Store) Get(ctx context.Context, name string) ([]byte, error) {
	if err := check(ctx, name); err != nil {
		return nil, err
	}
	body, info, _, err := s.again.GetObject(ctx, s.bucket, s.prefix+name, minio.GetObjectOptions{})
	if err != nil {
		return nil, wrap(err, "get object", name)
	}
	defer body.Close()
	data := make([]byte, info.Size)
	if _, err := io.ReadFull(body, data); err != nil {
		return nil, fault.New(fault.Unavailable, "get object %s: %w", name, err)
	}
	return data, nil
}

// Open implements objectstore.Store. Each ReadAt is a request of its own; a
// ReadHandle reads ahead.
func (s *Store) Open(ctx context.Context, name string) (objstorage.Readable, error) {
	if err := check(ctx, name); err != nil {
		return nil, err
	}
	info, err := s.again.StatObject(ctx, s.bucket, s.prefix+name, minio.StatObjectOptions{})
	if err != nil {
		return nil, wrap(err, "open object", name)
	}
	return objectstore.NewRanged(name, info.Size, func(ctx context.Context, p []byte, off int64) error { return s.readAt(ctx, name, p, off) }), nil
}

// List implements objectstore.Store.
func (s *Store) List(ctx context.Context, prefix, after string, n int) ([]objectstore.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opts := minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true}
	if after != "" {
		opts.StartAfter = s.prefix + after
	}
	if n > 0 && n < 1000 {
		opts.MaxKeys = n
	}
	var out []objectstore.Info
	for o := range s.again.ListObjectsIter(ctx, s.bucket, opts) {
		if o.Err != nil {
			return nil, wrap(o.Err, "list objects", prefix)
		}
		name := strings.TrimPrefix(o.Key, s.prefix)
		if name <= after {
			continue
		}
		out = append(out, objectstore.Info{Name: name, Size: o.Size, Modified: o.LastModified})
		if len(out) == n {
			break
		}
	}
	return out, nil
}

// Delete implements objectstore.Store.
func (s *Store) Delete(ctx context.Context, name string) error {
	if err := check(ctx, name); err != nil {
		return err
	}
	err := s.again.RemoveObject(ctx, s.bucket, s.prefix+name, minio.RemoveObjectOptions{})
	if err = wrap(err, "delete object", name); errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// DeleteAll implements objectstore.BulkDeleter. What the service does not delete
// by a request for many is deleted by one for each: there are services that
// know no other.
func (s *Store) DeleteAll(ctx context.Context, names []string) error {
	objects := make(chan minio.ObjectInfo, len(names))
	for _, name := range names {
		if err := check(ctx, name); err != nil {
			return err
		}
		objects <- minio.ObjectInfo{Key: s.prefix + name}
	}
	close(objects)
	var left []string
	for failed := range s.again.RemoveObjects(ctx, s.bucket, objects, minio.RemoveObjectsOptions{}) {
		left = append(left, strings.TrimPrefix(failed.ObjectName, s.prefix))
	}
	for _, name := range left {
		if err := s.Delete(ctx, name); err != nil {
			return err
		}
	}
	return ctx.Err() // with which some deletions may not have been tried
}

// Probe implements objectstore.Store.
func (s *Store) Probe(ctx context.Context) error { return objectstore.Probe(ctx, s) }

// wrap says what was done to which object when err happened, and gives errors
// their kind.
func wrap(err error, doing, name string) error {
	if err == nil {
		return nil
	}
	code := minio.ToErrorResponse(err)
	kind := fault.Kind(0)
	switch {
	case code.Code == "NoSuchKey" || code.Code == "NotFound":
		kind = fault.NotFound
	case code.Code == "NoSuchBucket":
		kind = fault.FailedPrecondition
	case code.Code == "AccessDenied" || code.StatusCode == http.StatusForbidden:
		kind = fault.PermissionDenied
	case code.Code == "XMinioStorageFull" || code.Code == "QuotaExceeded" || code.Code == "XMinioAdminBucketQuotaExceeded" ||
		code.StatusCode == http.StatusInsufficientStorage:
		kind = fault.Exhausted
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
	case code.StatusCode == http.StatusNotFound:
		kind = fault.NotFound
	case code.StatusCode >= 500, code.StatusCode == http.StatusTooManyRequests, code.StatusCode == http.StatusConflict, code.StatusCode == 0:
		kind = fault.Unavailable
	}
	if kind == 0 {
		return fmt.Errorf("%s %s: %w", doing, name, err)
	}
	return fault.New(kind, "%s %s: %w", doing, name, err)
}
