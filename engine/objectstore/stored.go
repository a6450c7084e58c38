package objectstore

import (
	"context"

	"github.com/cockroachdb/pebble/v2/objstorage"
)

// A Copying store may answer from copies of its own objects, or of another store's.
type Copying interface {
	Store
	// OpenStored is Open past all copies, for callers that check what is stored.
	OpenStored(ctx context.Context, name string) (objstorage.Readable, error)
	// Distrust forgets the copy of an object that may differ from the stored one. A reader
	// of a copy goes on with the stored object.
	Distrust(name string)
}

// OpenStored opens an object past the copies that s may have.
func OpenStored(ctx context.Context, s Store, name string) (objstorage.Readable, error) {
	s, names := whole(s, []string{name})
	if c, ok := s.(Copying); ok {
		return c.OpenStored(ctx, names[0])
	}
	return s.Open(ctx, names[0])
}

// Distrust makes s forget the copy of an object, if it has one.
func Distrust(s Store, name string) {
	s, names := whole(s, []string{name})
	if c, ok := s.(Copying); ok {
		c.Distrust(names[0])
	}
}
