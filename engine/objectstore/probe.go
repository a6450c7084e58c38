package objectstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"github.com/trestledb/trestle/engine/fault"
)

// probers is how many puts of one name race in a probe. A store that ignores
// the condition was caught by fewer; see I15 of the invariants.
const probers = 64

// Probe is the Probe method of a Store. It lets puts of one name race and checks that one
// of them won, then that the object cannot be overwritten in either way. It leaves nothing
// behind.
func Probe(ctx context.Context, s Store) (err error) {
	name := "probe/" + rand.Text()
	defer func() {
		// Also when the caller gave up: the probe's name is never used again.
		if e := s.Delete(context.WithoutCancel(ctx), name); e != nil && err == nil {
			err = fmt.Errorf("probe the object store: %w", e)
		}
	}()

	var wg sync.WaitGroup
	var results [probers]error
	start := make(chan struct{})
	for i := range results {
		wg.Go(func() {
			<-start
			results[i] = s.PutIfAbsent(ctx, name, probeData(i))
		})
	}
	close(start)
	wg.Wait()
	winner, winners := -1, 0
	for i, err := range results {
		switch {
		case err == nil:
			winner = i
			winners++
		case !errors.Is(err, fault.AlreadyExists):
			return fmt.Errorf("probe the object store: %w", err)
		}
	}
	if winners != 1 {
		return fault.New(fault.FailedPrecondition,
			"the object store is unfit: of %d racing puts of one name %d succeeded, where exactly 1 must", probers, winners)
	}
	if err := probeHolds(ctx, s, name, winner, "a race of puts"); err != nil {
		return err
	}

	if err := s.PutIfAbsent(ctx, name, probeData(probers)); !errors.Is(err, fault.AlreadyExists) {
		return unfit("a put over an object that is there", err)
	}
	w, err := s.Create(ctx, name)
	if err == nil {
		if err = w.Write(probeData(probers)); err == nil {
			err = w.Finish()
		} else {
			w.Abort()
		}
	}
	if !errors.Is(err, fault.AlreadyExists) {
		return unfit("creating an object that is there", err)
	}
	return probeHolds(ctx, s, name, winner, "an attempt to overwrite")
}

func probeData(i int) []byte { return fmt.Appendf(nil, "probe %d", i) }

func probeHolds(ctx context.Context, s Store, name string, i int, after string) error {
	got, err := s.Get(ctx, name)
	if err != nil {
		return fmt.Errorf("probe the object store: %w", err)
	}
	if !bytes.Equal(got, probeData(i)) {
		return fault.New(fault.FailedPrecondition,
			"the object store is unfit: after %s the object holds %.100q, where it must hold %q", after, got, probeData(i))
	}
	return nil
}

func unfit(what string, err error) error {
	if err != nil {
		return fmt.Errorf("probe the object store: %s: %w", what, err)
	}
	return fault.New(fault.FailedPrecondition, "the object store is unfit: %s succeeds, where it must fail", what)
}
