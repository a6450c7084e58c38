package datadirtest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestBesideCrashClone: nothing waits for a CrashClone for ever. Of a vfs.MemFS these do within a
// few thousand turns.
func TestBesideCrashClone(t *testing.T) {
	for name, turn := range map[string]func(m *CrashableMem, i int) error{
		"Link": func(m *CrashableMem, i int) error {
			name := fmt.Sprint(i % 8)
			return errors.Join(m.Link("a", name), m.Remove(name))
		},
		"ReuseForWrite": func(m *CrashableMem, i int) error {
			f, err := m.ReuseForWrite("a", "a", vfs.WriteCategoryUnspecified)
			if err != nil {
				return err
			}
			return f.Close()
		},
		"Lock": func(m *CrashableMem, i int) error {
			l, err := m.Lock("lock")
			if err != nil {
				return err
			}
			return l.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewCrashableMem()
			WriteFile(t, m, "a", []byte("a"))
			var wg sync.WaitGroup
			wg.Go(func() {
				for i := range 20_000 {
					if err := turn(m, i); err != nil {
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
		})
	}
}
