package hdfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/objectstore/hdfs/hdfstest"
	"github.com/trestledb/trestle/engine/objectstore/storetest"
)

// TestReal checks the store on a real HDFS.
func TestReal(t *testing.T) {
	c := hdfstest.Real(t)
	t.Run("suite", func(t *testing.T) {
		n := 0
		storetest.Run(t, func(t *testing.T) objectstore.Store {
			n++
			return open(t, c.Options(fmt.Sprintf("/test%d", n)))
		})
	})
	t.Run("outcomes", func(t *testing.T) {
		o := c.Options("/outcomes")
		transport := http.DefaultTransport.(*http.Transport).Clone()
		defer transport.CloseIdleConnections()
		o.Transport = transport
		testOutcomes(t, o)
	})
	t.Run("race", func(t *testing.T) { testRealRace(t, c) })
	t.Run("synced", func(t *testing.T) { testSynced(t, c) })
	t.Run("killed", func(t *testing.T) { testKilled(t, c) })
}

// testRealRace lets stores race for names.
func testRealRace(t *testing.T, c *hdfstest.Cluster) {
	const racers, names = 4, 50
	var won [names]atomic.Int32
	var wg sync.WaitGroup
	for r := range racers {
		o := c.Options("/race")
		o.Owner = fmt.Sprint("p", r)
		s := open(t, o)
		wg.Go(func() {
			for i := range names {
				data := fmt.Appendf(nil, "%d", r)
				err := s.PutIfAbsent(t.Context(), fmt.Sprintf("%d/%d", i%7, i), data)
				if err == nil {
					won[i].Add(1)
				} else if !errors.Is(err, fault.AlreadyExists) {
					t.Error(err)
				}
				if got, e := s.Get(t.Context(), fmt.Sprintf("%d/%d", i%7, i)); e != nil || err == nil && !bytes.Equal(got, data) {
					t.Errorf("%d holds %q, %v after %v", i, got, e, err)
				}
			}
		})
	}
	wg.Wait()
	for i := range won {
		if n := won[i].Load(); n != 1 {
			t.Errorf("%d was stored %d times", i, n)
		}
	}
}

// testSynced looks at the system calls of the DataNode and the NameNode, if
// strace is there.
func testSynced(t *testing.T, c *hdfstest.Cluster) {
	s := open(t, c.Options("/synced"))
	trace := func(p *os.Process, do func()) (calls []string) {
		t.Helper()
		file := t.TempDir() + "/trace"
		cmd := exec.Command("strace", "-f", "-y", "-p", fmt.Sprint(p.Pid), "-e", "trace=fsync,fdatasync,rename", "-o", file)
		if err := cmd.Start(); err != nil {
			t.Skip("no strace: ", err)
		}
		time.Sleep(2 * time.Second)
		do()
		time.Sleep(500 * time.Millisecond)
		_ = cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait()
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			for _, call := range []string{"fsync(", "fdatasync(", "rename("} {
				if i := strings.Index(line, call); i >= 0 {
					calls = append(calls, strings.TrimSpace(line[i:]))
				}
			}
		}
		t.Logf("calls:\n%s", strings.Join(calls, "\n"))
		return calls
	}
	put := func(name string) func() {
		return func() {
			if err := s.PutIfAbsent(t.Context(), name, []byte("x")); err != nil && !errors.Is(err, fault.AlreadyExists) {
				t.Error(err)
			}
		}
	}
	calls := trace(c.DataNode(), put("a"))
	last := func(want string) int {
		i := len(calls) - 1
		for i >= 0 && !(strings.HasPrefix(calls[i], "fsync") && strings.Contains(calls[i], want)) {
			i--
		}
		return i
	}
	renamed := slices.IndexFunc(calls, func(s string) bool { return strings.HasPrefix(s, "rename") })
	switch {
	case renamed < 0:
		t.Error("no block was finished")
	case last("/finalized/") < renamed:
		t.Error("the directory of the block was not synced behind its rename")
	case last("rbw/blk_") < 0 || last(".meta") < 0:
		t.Error("block and checksums were not synced")
	}
	for name, least := range map[string]int{"b": 3, "a": 3} { // a is there: so the removal of the loser's file counts
		if calls := trace(c.NameNode(), put(name)); len(calls) < least {
			t.Errorf("the NameNode synced %d times", len(calls))
		}
	}
}

// testKilled kills both nodes at once while objects are stored.
func testKilled(t *testing.T, c *hdfstest.Cluster) {
	s := open(t, c.Options("/killed"))
	var mu sync.Mutex
	stored := map[string][]byte{}
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for g := range 8 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name, data := fmt.Sprintf("%d/%d", g, i), bytes.Repeat(fmt.Appendf(nil, "%d %d ", g, i), 300*g*g)
				for {
					err := s.PutIfAbsent(ctx, name, data)
					if ctx.Err() != nil {
						return
					}
					if err == nil || errors.Is(err, fault.AlreadyExists) {
						break
					}
				}
				mu.Lock()
				stored[name] = data
				mu.Unlock()
			}
		})
	}
	for range 2 {
		time.Sleep(3 * time.Second)
		c.KillNameNode()
		c.KillDataNode()
		c.StartNameNode()
		c.StartDataNode()
		c.Wait()
	}
	time.Sleep(time.Second)
	c.KillDataNode()
	time.Sleep(time.Second)
	c.StartDataNode()
	c.Wait()
	stop()
	wg.Wait()
	for name, data := range stored {
		if got, err := s.Get(t.Context(), name); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s holds %d bytes of %d, %v", name, len(got), len(data), err)
		}
	}
	infos, err := s.List(t.Context(), "", "", 0)
	if err != nil || len(infos) < len(stored) || len(stored) == 0 {
		t.Errorf("%d objects are listed, %d were stored, %v", len(infos), len(stored), err)
	}
	t.Logf("%d objects stored, %d there", len(stored), len(infos))
}
