package objectstore

import (
	"sync"

	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// writeBuffer is how much a writer collects before it calls the file system.
	writeBuffer = 512 << 10
	// enough is how much is given to the file system as it comes.
	enough = 128 << 10
	// bytesPerSync is how much a writer writes before it asks the kernel to start writing
	// that to the disk. So Finish has little left to wait for.
	bytesPerSync = 4 << 20
)

var writeBuffers = sync.Pool{New: func() any { return new([writeBuffer]byte) }}

// localWriter implements objstorage.Writable.
type localWriter struct {
	l    *Local
	name string
	tmp  string
	f    vfs.File
	buf  *[writeBuffer]byte
	n    int   // bytes in buf
	err  error // the first failure
}

var _ objstorage.Writable = (*localWriter)(nil)

func newLocalWriter(l *Local, name, tmp string, f vfs.File) *localWriter {
	f = vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: bytesPerSync, NoSyncOnClose: true})
	return &localWriter{l: l, name: name, tmp: tmp, f: f, buf: writeBuffers.Get().(*[writeBuffer]byte)}
}

func (w *localWriter) Write(p []byte) error {
	for len(p) > 0 && w.err == nil {
		if w.n == 0 && len(p) >= enough {
			_, w.err = w.f.Write(p)
			break
		}
		if w.n == writeBuffer {
			w.flush()
			continue
		}
		n := copy(w.buf[w.n:], p)
		w.n += n
		p = p[n:]
	}
	return wrap(w.err, "write object", w.name)
}

func (w *localWriter) flush() {
	if w.err == nil && w.n > 0 {
		_, w.err = w.f.Write(w.buf[:w.n])
	}
	w.n = 0
}

func (w *localWriter) Finish() error {
	w.flush()
	w.release()
	return wrap(w.l.publish(w.tmp, w.f, w.name, w.err), "finish object", w.name)
}

func (w *localWriter) Abort() {
	w.release()
	_ = w.f.Close()
	_ = w.l.fs.Remove(w.tmp)
}

func (w *localWriter) release() {
	writeBuffers.Put(w.buf)
	w.buf = nil
}
