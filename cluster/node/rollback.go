package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/engine/fault"
)

// Failed is closed when the process must not go on: the lock service was put back to
// an earlier state, or the tables of the cluster were transferred.
func (n *Node) Failed() <-chan struct{} { return n.failed }

// Err returns why Failed is closed, or nil.
func (n *Node) Err() error {
	select {
	case <-n.failed:
		return n.failure
	default:
		return nil
	}
}

// fail makes the node fail with an err that is fault.FailedPrecondition: it does not
// go away. It returns err.
func (n *Node) fail(err error) error {
	if errors.Is(err, fault.FailedPrecondition) {
		n.failOnce.Do(func() {
			n.failure = err
			close(n.failed)
		})
	}
	return err
}

// checkNotRolledBack makes the node fail if the lock service was put back to an
// earlier state, or was recovered, since the node has seen it.
func (n *Node) checkNotRolledBack(ctx context.Context) error { return n.fail(n.rollback.Check(ctx)) }

// CheckNotTransferred returns fault.FailedPrecondition if the tables of the cluster
// are, or were, moved to another place, or come from one and are not all there.
func (n *Node) CheckNotTransferred(ctx context.Context) error {
	err := catalog.CheckTransfer(ctx, n.Lock)
	if errors.Is(err, fault.FailedPrecondition) {
		err = fmt.Errorf("cluster %s is not served: %w", n.o.Cluster, err)
	}
	return err
}

// MonitorRollback keeps asking tablet servers for the number of the newest copy of the
// lock service, at first before it returns. It is for a process that has no store,
// where it could look.
func (n *Node) MonitorRollback(c *client.Client) {
	ask := func() {
		ctx, cancel := context.WithTimeout(n.ctx, 2*time.Second)
		defer cancel()
		n.askServer(ctx, c)
	}
	ask()
	n.monitoring.Go(func() {
		tick := time.NewTicker(10 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				ask()
			case <-n.ctx.Done():
				return
			}
		}
	})
}

// askServer asks the server of a METADATA tablet for that number, and makes the node
// fail if the lock service has a lower one. A client that is led to a server is served
// by it, so this server is the one that counts, however old the lock service is that
// led there. A server that cannot be reached says nothing.
func (n *Node) askServer(ctx context.Context, c *client.Client) {
	roots, err := c.Metadata().Roots(ctx)
	if err != nil {
		return // MonitorMetadata tells
	}
	for _, r := range roots {
		if r.Assignment == nil || r.Assignment.Addr == "" {
			continue
		}
		if st, err := n.Dialer.Dial(r.Assignment.Addr).Status(ctx); err == nil {
			n.rollback.Observe(st.Copy)
			_ = n.checkNotRolledBack(ctx)
			return
		}
	}
}
