package server

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/hrpc"
)

// BenchmarkGohbase puts rows of 100 bytes through one client from 200
// goroutines; the client sends them in Multis.
func BenchmarkGohbase(b *testing.B) {
	f := newFixture(b, Options{})
	f.table("t", oneFamily, nil)
	c := f.client(gohbase.FlushInterval(0))
	value := strings.Repeat("v", 100)
	b.ResetTimer()
	var wg sync.WaitGroup
	work := make(chan int)
	for range 200 {
		wg.Go(func() {
			for i := range work {
				p, err := hrpc.NewPutStr(context.Background(), "t", fmt.Sprintf("r%07d", i), values("f", "q", value))
				if err == nil {
					_, err = c.Put(p)
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range b.N {
		work <- i
	}
	close(work)
	wg.Wait()
}
