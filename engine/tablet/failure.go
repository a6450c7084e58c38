package tablet

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/trestledb/trestle/engine/fault"
)

// guard does a part of a tablet's background work that concerns that tablet alone:
// it reads what the tablet holds and writes new SSTables. A panic there ends the
// tablet and not the process, whose other tablets have no part in it, and which
// would meet it again after each start. It is returned as the error of the tablet.
// Changes of METADATA and of versions are not guarded: a panic there is the
// process's.
func (t *Tablet) guard(work string, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = t.fail(work, p, debug.Stack())
		}
	}()
	return do()
}

// reasonFailed is the Reason of the error of a tablet that has failed.
const reasonFailed = "TABLET_FAILED"

// IsFailure tells whether err is that of a tablet that had failed before it was
// called, and so did nothing.
func IsFailure(err error) bool {
	var f *fault.Error
	return errors.As(err, &f) && f.Reason == reasonFailed
}

// fail notes that work on the tablet has panicked, and has the tablet stop once
// its locks are free. It returns the error that every call gets from then on.
func (t *Tablet) fail(work string, p any, stack []byte) error {
	err := &fault.Error{Kind: fault.Internal, Reason: reasonFailed,
		Msg: fmt.Sprintf("tablet %v failed: its %s panicked: %v. What was acknowledged is kept for the next start.", t.id, work, p)}
	if !t.failure.CompareAndSwap(nil, err) {
		return t.Failure()
	}
	t.env.Log.Error("tablet failed: "+work+" panicked", "tablet", t.Name(), "panic", p, "stack", string(stack))
	t.env.failed(t, err)
	go t.stop()
	return err
}

// Failure returns why the tablet refuses all calls: its work has panicked. It is
// nil if it has not.
func (t *Tablet) Failure() error {
	if err := t.failure.Load(); err != nil {
		return err
	}
	return nil
}

// pinStopped returns what a failed tablet holds, which the caller releases; nil if
// it has not failed, or is closed.
func (t *Tablet) pinStopped() *version {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.stopped != nil {
		t.mu.stopped.refs.Add(1)
	}
	return t.mu.stopped
}

// stop refuses everything from now on. The memtables go; what they held is in the
// commit log, which RedoPoint keeps for the next start. So do the SSTables stay.
func (t *Tablet) stop() {
	t.change.Lock()
	defer t.change.Unlock()
	t.write.Lock()
	defer t.write.Unlock()
	if t.write.closed {
		return
	}
	t.mu.Lock()
	t.mu.redo = t.mu.version.redo()
	t.mu.stopped = newVersion(t.env, t.mu.row, nil)
	t.mu.Unlock()
	t.closeLocked()
}
