package sim

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/logtest"
	"github.com/trestledb/trestle/engine/metadata"
)

// A told has what is logged.
type told struct{ logtest.Buffer }

// await waits for a line that has all parts.
func (l *told) await(t *testing.T, parts ...string) {
	t.Helper()
	eventually(t, func() error {
	next:
		for line := range strings.Lines(l.String()) {
			for _, p := range parts {
				if !strings.Contains(line, p) {
					continue next
				}
			}
			return nil
		}
		return fmt.Errorf("no line has %q", parts)
	})
}

// TestTold: the master says which servers come, are drained and die, and where
// tablets go, with table and rows, by the names that errors and tools use.
func TestTold(t *testing.T) {
	log := new(told)
	c := start(t, Options{TTL: time.Second, Log: slog.New(slog.NewTextHandler(log, nil))}, 2)
	b := clientOf(t, c, "client")
	create(t, b, upkeepTable, "k")
	put(t, b, upkeepTable, "a", "v")
	name := func(id metadata.TabletID, rows string) []string {
		return []string{"tablet.id=" + id.String() + " ", "tablet.table=" + upkeepTable, `tablet.rows="` + rows + `"`}
	}
	tablets, err := b.Tablets(t.Context(), upkeepTable)
	if err != nil || len(tablets) != 2 {
		t.Fatalf("%v, %v", tablets, err)
	}
	first := tablets[0].Tablet
	servers := map[string]string{}
	for _, s := range []string{"server-1", "server-2"} {
		servers[s] = fmt.Sprintf("{}.name=%s {}.incarnation=%d", s, c.Server(s).Incarnation())
		log.await(t, "tablet server is there", strings.ReplaceAll(servers[s], "{}", "server"))
	}
	log.await(t, append(name(first, "[, k)"), "tablet is assigned")...)

	if err := b.MoveAt(t.Context(), upkeepTable, []byte("a"), "server-1"); err != nil {
		t.Fatal(err)
	}
	for _, typo := range []error{b.Drain(t.Context(), "server-9"), b.Undrain(t.Context(), "server-9")} {
		if !errors.Is(typo, fault.NotFound) {
			t.Errorf("a server that is not there is drained: %v", typo)
		}
	}
	if err := b.Undrain(t.Context(), "server-1"); !errors.Is(err, fault.FailedPrecondition) {
		t.Errorf("undrain of a server that is not being drained: %v", err)
	}
	if err := b.Drain(t.Context(), "server-1"); err != nil {
		t.Fatal(err)
	}
	log.await(t, "tablet server is drained", "name=server-1")
	log.await(t, append(name(first, "[, k)"), "tablet is moved", strings.ReplaceAll(servers["server-1"], "{}", "from"), `why="its server is drained"`)...)
	log.await(t, append(name(first, "[, k)"), "tablet given up", strings.ReplaceAll(servers["server-1"], "{}", "server"))...)
	log.await(t, append(name(first, "[, k)"), "tablet is assigned", strings.ReplaceAll(servers["server-2"], "{}", "to"))...)
	log.await(t, "it has no tablet left", strings.ReplaceAll(servers["server-1"], "{}", "server"))
	if err := b.Undrain(t.Context(), "server-1"); err != nil {
		t.Fatal(err)
	}
	log.await(t, "tablet server is drained no more", "name=server-1")

	// A drain that cannot end, as no other server is there, is waited for until it is
	// taken back.
	for _, s := range []string{"server-1", "server-2"} {
		if err := b.Drain(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	waits := make(chan error, 1)
	go func() { waits <- b.AwaitDrained(t.Context(), "server-2", func(int) {}) }()
	select {
	case err := <-waits:
		t.Fatalf("a server with tablets is drained: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	for _, s := range []string{"server-2", "server-1"} {
		if err := b.Undrain(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-waits:
		if !errors.Is(err, fault.FailedPrecondition) {
			t.Errorf("a drain that was taken back: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("a drain that was taken back is waited for")
	}

	c.KillServer("server-2")
	log.await(t, "tablet server is gone", strings.ReplaceAll(servers["server-2"], "{}", "server"))
	log.await(t, append(name(first, "[, k)"), "tablet is taken over", strings.ReplaceAll(servers["server-2"], "{}", "from"), strings.ReplaceAll(servers["server-1"], "{}", "to"))...)
	// One that is gone is still known as long as it is drained, or has tablets.
	if err := b.Drain(t.Context(), "server-2"); !errors.Is(err, fault.NotFound) {
		eventually(t, func() error {
			if err := b.Undrain(t.Context(), "server-2"); err != nil {
				return err
			}
			if err := b.Drain(t.Context(), "server-2"); !errors.Is(err, fault.NotFound) {
				return fmt.Errorf("a server that is gone and has no tablet is drained: %v", err)
			}
			return nil
		})
	}
}
