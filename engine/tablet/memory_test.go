package tablet

import (
	"testing"
	"testing/synctest"
)

// TestMemoryPressesAgain: while writers wait, each memtable that is flushed and leaves no room
// has another one flushed.
func TestMemoryPressesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		presses := 0
		m := NewMemory(100, func() { presses++ })
		m.add(150)
		var err error
		done := false
		go func() {
			_, err = m.wait(t.Context())
			done = true
		}()
		synctest.Wait()
		before := presses
		m.add(-20)
		synctest.Wait()
		if presses == before || done {
			t.Errorf("%d presses before, %d after; the writer waits: %v", before, presses, !done)
		}
		before = presses
		m.add(-40)
		synctest.Wait()
		if presses != before || !done || err != nil {
			t.Errorf("there is room, and %d presses are %d; the writer waits: %v, %v", before, presses, !done, err)
		}
	})
}
