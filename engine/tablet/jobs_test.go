package tablet

import "testing"

// Who waits until a compaction ends does so, while others look in vain for one
// more that could begin.
func TestJobsWait(t *testing.T) {
	var j jobs
	under, thought := new(work), new(work)
	j.add(under)
	ended, n := j.wait()
	if n != 1 {
		t.Errorf("%d compactions are under way", n)
	}
	j.add(thought)
	j.remove(thought, true)
	select {
	case <-ended:
		t.Error("a compaction that was only thought of has ended")
	default:
	}
	j.remove(under, false)
	select {
	case <-ended:
	default:
		t.Error("nobody is told that a compaction has ended")
	}
}
