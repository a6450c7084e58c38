package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// A Registration is the value of a server's item in the lock service.
type Registration struct {
	Name, Addr  string
	Incarnation uint64
	// Promise, if not nil, is the server's promise to a master.
	Promise *Promise `json:",omitempty"`
	// Version is that of the item.
	Version int64 `json:"-"`
}

// ServerName returns the name that logs and errors give the server.
func (r Registration) ServerName() metadata.ServerName {
	return metadata.ServerName{Name: r.Name, Incarnation: r.Incarnation}
}

// A Promise is one of a server to a master: to serve nothing for longer than Term after a
// certain reading of its own clock. That reading is the last one it gave out that the
// master has sent back (rpc.Control.Attend). It binds until the server has taken it out of
// its item. So take a master that has had no answer for that long and then removes the
// item with the promise in it. It knows that the server serves nothing, and never will.
type Promise struct {
	Master int64
	Term   time.Duration
}

// ServersPrefix is where the lock service has the items of living servers.
const ServersPrefix = "servers/"

// Servers returns the living tablet servers, by incarnation, and the revision from which
// to watch ServersPrefix.
func Servers(ctx context.Context, l lock.Service) (map[uint64]Registration, int64, error) {
	items, revision, err := l.List(ctx, ServersPrefix)
	if err != nil {
		return nil, 0, err
	}
	servers := map[uint64]Registration{}
	for _, i := range items {
		var r Registration
		if err := json.Unmarshal(i.Value, &r); err != nil {
			return nil, 0, fault.New(fault.Corruption, "item %s: %w", i.Key, err)
		}
		r.Version = i.Version
		servers[r.Incarnation] = r
	}
	return servers, revision, nil
}

// Drained tells which servers, by name, must get no tablets.
func Drained(ctx context.Context, l lock.Service) (map[string]bool, error) {
	items, _, err := l.List(ctx, DrainingPrefix)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, i := range items {
		names[i.Key[len(DrainingPrefix):]] = true
	}
	return names, nil
}

// DrainingPrefix is where the lock service has an item for each server, by name,
// that is to give up its tablets and get none.
const DrainingPrefix = "draining/"

// PinsPrefix is where the lock service has an item for each pinned tablet, by id in
// hexadecimal. Its value names the server that is to serve the tablet.
const PinsPrefix = "wanted/"

// PinKey returns the key of such an item.
func PinKey(id metadata.TabletID) string { return fmt.Sprintf("%s%016x", PinsPrefix, uint64(id)) }

// IncarnationKey is the item of the last number that ClaimIncarnation returned.
const IncarnationKey = "incarnation"

// ClaimIncarnation returns a number that is unique in the lock service. It is less than
// 2^31. The first process to claim one writes the format version, and the first
// of a later version writes that.
func ClaimIncarnation(ctx context.Context, l lock.Service) (uint64, error) {
	for attempt := 0; ; attempt++ {
		var n uint64
		item, err := l.Get(ctx, IncarnationKey)
		switch {
		case errors.Is(err, fault.NotFound):
			if err := markFormat(ctx, l); err != nil {
				return 0, err
			}
			n = 1 // METADATA's number is no id of a table
		case err != nil:
			return 0, err
		default:
			if err := json.Unmarshal(item.Value, &n); err != nil {
				return 0, fault.New(fault.Corruption, "item %s: %w", IncarnationKey, err)
			}
			if err := raiseFormat(ctx, l); err != nil {
				return 0, err
			}
		}
		n++
		if n >= 1<<31 {
			return 0, fault.New(fault.Internal, "the cluster has used all incarnations")
		}
		value, err := json.Marshal(n)
		if err != nil {
			return 0, err
		}
		_, err = l.Put(ctx, IncarnationKey, value, item.Version)
		if err == nil {
			return n, nil
		}
		if !errors.Is(err, fault.Aborted) {
			return 0, err
		}
		// When many servers begin at once, all but one have to ask again each time.
		select {
		case <-time.After(rand.N(time.Millisecond << min(attempt+1, 10))):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}
