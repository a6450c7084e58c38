package commitlog

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

// TestZombieChild is the process of TestI1_ZombieProcess: it writes and prints
// what was acknowledged until it is fenced.
func TestZombieChild(t *testing.T) {
	dir := os.Getenv("TRESTLE_TEST_ZOMBIE")
	if dir == "" {
		t.Skip("a part of TestI1_ZombieProcess")
	}
	store, err := objectstore.OpenLocal(vfs.Default, dir, objectstore.LocalOptions{Owner: "zombie"})
	if err != nil {
		t.Fatal(err)
	}
	w := createSegments(t, store, 1, SegmentOptions{SegmentBytes: 500, InFlight: 4})
	for seq := uint64(1); ; seq += 5 {
		var pos Pos
		for i := range uint64(5) {
			r, err := w.Reserve(t.Context(), 100)
			if errors.Is(err, fault.Fenced) {
				fmt.Println("fenced")
				return
			}
			pos = w.Append(r, 1, seq+i, record(func(dst []byte) []byte { return payload(dst, 1, seq+i, 100) }), nil)
		}
		switch err := w.Wait(t.Context(), pos); {
		case err == nil:
			fmt.Println("acked", seq+4)
		case errors.Is(err, fault.Fenced):
			fmt.Println("fenced")
			return
		default:
			t.Fatal(err)
		}
	}
}

// TestI1_ZombieProcess stops a process that writes its log to a directory,
// seals the log, lets the process go on, and compares what it was acknowledged
// with what is replayed.
func TestI1_ZombieProcess(t *testing.T) {
	for round := range 5 {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run=^TestZombieChild$")
		cmd.Env = append(os.Environ(), "TRESTLE_TEST_ZOMBIE="+dir)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		store, err := objectstore.OpenLocal(vfs.Default, dir, objectstore.LocalOptions{Owner: "taker"})
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for range 5 + round*3 {
			if !lines.Scan() {
				t.Fatal("the process ended too soon")
			}
		}
		paused := round%2 == 0 // else it is alive all the time
		if paused {
			if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		end := mustSeal(t, store, 1, Pos{Log: 1, Segment: 1})
		got, err := replaySealed(t, store, 1, Pos{}, end, nil)
		if err != nil {
			t.Fatal(err)
		}
		if paused {
			if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		}
		var acked uint64
		fenced := false
		for ok := true; ok; ok = lines.Scan() {
			fmt.Sscanf(lines.Text(), "acked %d", &acked)
			fenced = fenced || lines.Text() == "fenced"
		}
		if err := cmd.Wait(); err != nil || !fenced {
			t.Errorf("the process ends with %v, fenced %v", err, fenced)
		}
		if n := uint64(len(got[1])); n < acked || acked == 0 {
			t.Errorf("%d records are replayed, %d were acknowledged", n, acked)
		}
		again, err := replaySealed(t, store, 1, Pos{}, mustSeal(t, store, 1, Pos{}), nil)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, again[1], got[1])
	}
}
