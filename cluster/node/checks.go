package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// A Check tells whether something that the process needs is there.
type Check struct {
	Name string
	// Err returns why it is missing, or nil, without blocking. It is safe for
	// concurrent use.
	Err func() error
}

// Checks returns what the calls of Monitor up to now monitor, and the lock service. It
// is not to be called beside them.
func (n *Node) Checks() []Check { return n.checks }

// checkInterval is how often a check looks, and how long a look may take.
const checkInterval = 2 * time.Second

// monitor makes a check of look, which is called at once, and then every
// checkInterval.
func (n *Node) monitor(name string, look func(context.Context) error) {
	n.monitorFrom(0, name, look)
}

// monitorFrom is monitor, with a first look after a while if first is not zero. The
// check fails until then.
func (n *Node) monitorFrom(first time.Duration, name string, look func(context.Context) error) {
	var mu sync.Mutex
	last := errors.New("not known yet")
	n.checks = append(n.checks, Check{name, func() error {
		mu.Lock()
		defer mu.Unlock()
		return last
	}})
	once := func() {
		ctx, cancel := context.WithTimeout(n.ctx, checkInterval)
		defer cancel()
		err := look(ctx)
		mu.Lock()
		last = err
		mu.Unlock()
	}
	if first == 0 {
		once()
		first = checkInterval
	}
	n.monitoring.Go(func() {
		for wait := first; ; wait = checkInterval {
			select {
			case <-time.After(wait):
				once()
			case <-n.ctx.Done():
				return
			}
		}
	})
}

// checkLockService makes the node fail if the process must not go on with what the
// lock service says, and reads which commit logs are damaged.
func (n *Node) checkLockService(ctx context.Context) error {
	if err := n.checkNotRolledBack(ctx); err != nil {
		return err
	}
	if err := n.fail(n.CheckNotTransferred(ctx)); err != nil {
		return err
	}
	logs, err := catalog.DamagedLogs(ctx, n.Lock)
	if err == nil {
		n.damaged.Store(&logs)
	}
	return err
}

// DamagedLogs returns the commit logs that tablets wait for, as the lock service had
// them lately.
func (n *Node) DamagedLogs() []catalog.DamagedLog {
	if d := n.damaged.Load(); d != nil {
		return *d
	}
	return nil
}

// MonitorStore checks that the store is that of the cluster and has room, as far as
// that can be asked: of a directory.
func (n *Node) MonitorStore(s *Store) { n.monitor("shared store", s.check) }

// MonitorMaster checks that there is a master.
func (n *Node) MonitorMaster() {
	n.monitor("master", func(ctx context.Context) error {
		_, err := n.Lock.Get(ctx, catalog.MasterKey)
		if errors.Is(err, fault.NotFound) {
			return errors.New("no process is the master: start trestle master")
		}
		return err
	})
}

// MonitorMetadata checks that METADATA is served. It returns before the first look:
// METADATA may wait for the process to start.
func (n *Node) MonitorMetadata(c *client.Client) {
	n.monitorFrom(time.Millisecond, "METADATA", func(ctx context.Context) error {
		roots, err := c.Metadata().Roots(ctx)
		if err != nil {
			return err
		}
		if len(roots) == 0 {
			return errors.New("there is no METADATA tablet yet: the first master makes it")
		}
		for _, r := range roots {
			if a := r.Assignment; a == nil || a.State != metadata.Open {
				return fmt.Errorf("METADATA tablet %v is not served", r.Tablet)
			}
		}
		if _, err = c.Metadata().Lookup(ctx, 1<<63-1, nil, 1); errors.Is(err, fault.NotFound) {
			err = nil // it was read all the same
		}
		return err
	})
}
