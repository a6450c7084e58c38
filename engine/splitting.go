package engine

import (
	"context"
	"time"

	"github.com/trestledb/trestle/engine/tablet"
)

// splitting splits tablets that have grown too large, or take too much of the
// load, until ctx ends. METADATA stays whole.
func (s *Store) splitting(ctx context.Context) {
	hot := tablet.Hot{}
	checks := time.NewTicker(s.o.SplitCheck)
	defer checks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-checks.C:
			s.splitLarge(ctx)
			s.splitHot(ctx, hot)
		}
	}
}
