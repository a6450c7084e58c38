package objectstore

import (
	"context"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"

	"github.com/trestledb/trestle/engine/fault"
)

// A Store keeps immutable objects by name. Its methods may be called from any
// number of goroutines.
//
// A name is made of parts separated by slashes. A part is 1 to 255 of the bytes A-Z a-z
// 0-9 . _ - and does not start with a dot. A name must not be used together with one of
// its own leading parts, as "a" is of "a/b". A wrong name is fault.Invalid.
//
// A full disk or a used-up quota is fault.Exhausted. Other failures of the
// storage beneath wrap its error and no kind, or fault.Unavailable if trying
// again may help.
type Store interface {
	// PutIfAbsent stores data under name. When it returns nil the object is
	// durable and every later Open, Get and List of every process sees it. When
	// it returns fault.AlreadyExists an object of that name is there, durable as
	// well, and it was not changed. After any other error the object may be
	// there, with exactly this data, or not.
	PutIfAbsent(ctx context.Context, name string, data []byte) error

	// Create starts an object that is written piece by piece. It is not visible
	// and leaves nothing behind until Finish, which has the outcomes of
	// PutIfAbsent. One of Finish and Abort must be called, also after a failed
	// Write. The Writable is not safe for concurrent use; its Write does not
	// change or keep the slice.
	Create(ctx context.Context, name string) (objstorage.Writable, error)

	// Open opens an object for reading, or returns fault.NotFound. An object
	// must not be deleted while it is open.
	Open(ctx context.Context, name string) (objstorage.Readable, error)

	// Get returns the content of an object, or fault.NotFound.
	Get(ctx context.Context, name string) ([]byte, error)

	// List returns the objects whose names start with prefix and are larger than after, at
	// most n of them; n <= 0 means all. They are in ascending order of names (as byte
	// strings). Fewer than n means that the list is complete. An object that is stored or
	// deleted meanwhile may be missed or not.
	List(ctx context.Context, prefix, after string, n int) ([]Info, error)

	// Delete removes an object. It returns nil if there is none. After a power failure a
	// deleted object may be there again, so what must not come back may not depend on
	// Delete. A garbage collector lists and deletes again.
	Delete(ctx context.Context, name string) error

	// Probe checks that PutIfAbsent of the store keeps the promises above, and returns
	// fault.FailedPrecondition if it does not.
	Probe(ctx context.Context) error
}

// Info describes an object.
type Info struct {
	Name string
	Size int64 // in bytes
	// Modified is when the object was written, by the clock of the store.
	Modified time.Time
}

// CheckName returns fault.Invalid unless name may name an object.
func CheckName(name string) error {
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part[0] == '.' || len(part) > 255 || strings.ContainsFunc(part, notInName) {
			return fault.New(fault.Invalid, "%q cannot name an object", name)
		}
	}
	return nil
}

func notInName(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '.' || r == '_' || r == '-')
}
