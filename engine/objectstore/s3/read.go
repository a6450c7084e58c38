package s3

import (
	"context"
	"io"

	"github.com/minio/minio-go/v7"

	"github.com/trestledb/trestle/engine/fault"
)

// readAt reads by one ranged GET.
func (s *Store) readAt(ctx context.Context, name string, p []byte, off int64) error {
	var opts minio.GetObjectOptions
	if err := opts.SetRange(off, off+int64(len(p))-1); err != nil {
		return wrap(err, "read object", name)
	}
	body, info, _, err := s.again.GetObject(ctx, s.bucket, s.prefix+name, opts)
	if err != nil {
		return wrap(err, "read object", name)
	}
	defer body.Close()
	if info.Size != int64(len(p)) {
		return fault.New(fault.Unavailable, "read object %s: got %d bytes of %d at %d", name, info.Size, len(p), off)
	}
	if _, err := io.ReadFull(body, p); err != nil {
		return fault.New(fault.Unavailable, "read object %s: %w", name, err)
	}
	return nil
}
