package objectstore

import (
	"context"
	"errors"
	"sync"
)

// A BulkDeleter is a Store that deletes many objects with few requests.
type BulkDeleter interface {
	Store
	// DeleteAll is Delete of each. After an error some may be deleted.
	DeleteAll(ctx context.Context, names []string) error
}

// deleters is how many objects are deleted at a time where each is a request.
const deleters = 8

// DeleteAll deletes objects, with few requests if s is a BulkDeleter. After an
// error some may be deleted.
func DeleteAll(ctx context.Context, s Store, names []string) error {
	s, names = whole(s, names)
	if b, ok := s.(BulkDeleter); ok && len(names) > 1 {
		return b.DeleteAll(ctx, names)
	}
	return each(ctx, names, s.Delete)
}

// whole returns the store that s is a part of, and what names are in it.
func whole(s Store, names []string) (Store, []string) {
	for {
		part, ok := s.(*sub)
		if !ok {
			return s, names
		}
		full := make([]string, len(names))
		for i, name := range names {
			full[i] = part.name(name)
		}
		s, names = part.s, full
	}
}

// each calls do with names, several at a time.
func each(ctx context.Context, names []string, do func(context.Context, string) error) error {
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for i := range min(deleters, len(names)) {
		wg.Go(func() {
			for ; i < len(names); i += deleters {
				if err := do(ctx, names[i]); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
