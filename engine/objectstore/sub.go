package objectstore

import (
	"context"

	"github.com/cockroachdb/pebble/v2/objstorage"
)

// Sub returns the part of s whose names begin with dir and a slash, as a store
// of its own. It closes nothing of s.
func Sub(s Store, dir string) Store { return &sub{s: s, prefix: dir + "/"} }

type sub struct {
	s      Store
	prefix string
}

// name returns the name in the whole store. A wrong one stays wrong.
func (s *sub) name(name string) string { return s.prefix + name }

func (s *sub) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	return s.s.PutIfAbsent(ctx, s.name(name), data)
}

func (s *sub) Create(ctx context.Context, name string) (objstorage.Writable, error) {
	return s.s.Create(ctx, s.name(name))
}

func (s *sub) Open(ctx context.Context, name string) (objstorage.Readable, error) {
	return s.s.Open(ctx, s.name(name))
}

func (s *sub) Get(ctx context.Context, name string) ([]byte, error) {
	return s.s.Get(ctx, s.name(name))
}

func (s *sub) List(ctx context.Context, prefix, after string, n int) ([]Info, error) {
	if after != "" {
		after = s.name(after)
	}
	infos, err := s.s.List(ctx, s.name(prefix), after, n)
	for i := range infos {
		infos[i].Name = infos[i].Name[len(s.prefix):]
	}
	return infos, err
}

func (s *sub) Delete(ctx context.Context, name string) error { return s.s.Delete(ctx, s.name(name)) }

func (s *sub) Probe(ctx context.Context) error { return s.s.Probe(ctx) }
