package objectstore_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

const racedObjects = 100

// TestSharedChild is a process of TestSharedByProcesses. It prints what it won.
func TestSharedChild(t *testing.T) {
	dir, owner, ok := strings.Cut(os.Getenv("TRESTLE_TEST_SHARED"), "|")
	if !ok {
		t.Skip("a part of TestSharedByProcesses")
	}
	s, err := objectstore.OpenLocal(vfs.Default, dir, objectstore.LocalOptions{Owner: owner})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range racedObjects {
		name := fmt.Sprintf("race/%03d", i)
		switch err := s.PutIfAbsent(t.Context(), name, []byte(owner)); {
		case err == nil:
			fmt.Println("won", name)
		case !errors.Is(err, fault.AlreadyExists):
			t.Error(err)
		}
		if b, err := s.Get(t.Context(), name); err != nil || len(b) == 0 {
			t.Errorf("%s after a put: %q, %v", name, b, err)
		}
	}
}

// TestSharedByProcesses: of processes that race on one directory, one stores
// each object.
func TestSharedByProcesses(t *testing.T) {
	dir := t.TempDir()
	const processes = 4
	var out [processes][]byte
	var wg sync.WaitGroup
	for i := range processes {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0], "-test.run=^TestSharedChild$")
			cmd.Env = append(os.Environ(), fmt.Sprintf("TRESTLE_TEST_SHARED=%s|p%d", dir, i))
			var err error
			if out[i], err = cmd.CombinedOutput(); err != nil {
				t.Errorf("process %d: %v\n%s", i, err, out[i])
			}
		})
	}
	wg.Wait()
	s, err := objectstore.OpenLocal(vfs.Default, dir, objectstore.LocalOptions{Owner: "last"})
	if err != nil {
		t.Fatal(err)
	}
	won := map[string]string{}
	for i := range processes {
		for line := range strings.Lines(string(out[i])) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "won "); ok {
				if other, twice := won[name]; twice {
					t.Errorf("%s was stored by %s and p%d", name, other, i)
				}
				won[name] = fmt.Sprintf("p%d", i)
			}
		}
	}
	for i := range racedObjects {
		name := fmt.Sprintf("race/%03d", i)
		if b, err := s.Get(t.Context(), name); err != nil || string(b) != won[name] {
			t.Errorf("%s holds %q, %v; it was stored by %q", name, b, err, won[name])
		}
	}
}

// lossyFS is a network file system that loses the reply of every link(2), sends
// it again and returns what that says.
type lossyFS struct{ vfs.FS }

func (fs lossyFS) Link(oldname, newname string) error {
	if err := fs.FS.Link(oldname, newname); err != nil {
		return err
	}
	return &os.LinkError{Op: "link", Old: oldname, New: newname, Err: syscall.EEXIST}
}

func TestLinkRepeated(t *testing.T) {
	s, err := objectstore.OpenLocal(lossyFS{vfs.Default}, t.TempDir(), objectstore.LocalOptions{Owner: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.PutIfAbsent(t.Context(), "x", []byte("mine")); err != nil {
		t.Errorf("put: %v", err)
	}
	if err := s.PutIfAbsent(t.Context(), "x", []byte("other")); !errors.Is(err, fault.AlreadyExists) {
		t.Errorf("second put: %v", err)
	}
	if err := s.Probe(t.Context()); err != nil {
		t.Errorf("probe: %v", err)
	}
}
