package datadirtest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestLinkBesideCrashClone: neither waits for the other for ever. Those of a vfs.MemFS do within
// a few thousand turns.
func TestLinkBesideCrashClone(t *testing.T) {
	m := NewCrashableMem()
	WriteFile(t, m, "a", []byte("a"))
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 20_000 {
			name := fmt.Sprint(i % 8)
			if err := m.Link("a", name); err != nil {
				t.Error(err)
				return
			}
			if err := m.Remove(name); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 20_000 {
		if _, err := m.CrashClone(vfs.CrashCloneCfg{}).Stat("nothing"); err == nil {
			t.Fatal("a file that nobody made")
		}
	}
	wg.Wait()
}
