package admin

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"

	"github.com/trestledb/trestle/gateway/reread"
)

// A Profile is what a data call needs to know of its app profile.
type Profile struct {
	// AllowTransactionalWrites permits CheckAndMutateRow and ReadModifyWriteRow.
	AllowTransactionalWrites bool
	// ReadOnly refuses every write (Data Boost).
	ReadOnly bool
	// SingleCluster says that the profile routes to ClusterID and no other.
	SingleCluster bool
	// ClusterID and Zone are where the request is served, for response metadata.
	ClusterID, Zone string
}

// A route is what the cache keeps of one instance. It does not change; requests go on
// with it while it is read again.
type route struct {
	exists   bool
	profiles map[string]Profile
	expires  time.Time
	again    reread.Question[*route]
}

// maxRoutes bounds the cache: names in requests are free to choose.
const maxRoutes = 4096

// A profileCache answers without a lock. Own changes empty it at once, those
// of other gateways are seen when an entry has expired and was read again.
type profileCache struct {
	routes atomic.Pointer[sync.Map] // instance name to *route

	mu struct {
		sync.Mutex
		n int // entries added to routes
		// changes counts calls of forget. A record that was read before a change
		// must not be cached after it.
		changes uint64
	}
}

func (c *profileCache) init() { c.routes.Store(new(sync.Map)) }

// forget drops what is known of an instance.
func (c *profileCache) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.changes++
	c.routes.Load().Delete(name)
}

func (c *profileCache) changes() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.changes
}

// add caches r, unless something changed since changes was asked.
func (c *profileCache) add(name string, r *route, changes uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.changes != changes {
		return
	}
	if c.mu.n++; c.mu.n > maxRoutes {
		c.init()
		c.mu.n = 1
	}
	c.routes.Load().Store(strings.Clone(name), r)
}

// Profile returns the app profile called id (empty: "default") of an instance,
// given by its full resource name, or NotFound. It is made for the path of
// every request. In emulator mode every instance that was not created exists
// and has every profile.
func (a *Admin) Profile(ctx context.Context, instance, id string) (Profile, error) {
	r, err := a.route(ctx, instance)
	if err != nil {
		return Profile{}, err
	}
	if id == "" {
		id = defaultProfile
	}
	if p, ok := r.profiles[id]; ok {
		return p, nil
	}
	switch {
	case r.exists:
		return Profile{}, missing("app_profile_id", "App profile", id)
	case a.o.Emulator:
		return Profile{AllowTransactionalWrites: true, SingleCluster: true, ClusterID: defaultCluster, Zone: a.o.Zone}, nil
	}
	return Profile{}, missingInstance("", instance)
}

// Instance returns nil if an instance exists, else NotFound. In emulator mode
// every instance exists.
func (a *Admin) Instance(ctx context.Context, name string) error {
	if a.o.Emulator {
		return nil
	}
	r, err := a.route(ctx, name)
	if err == nil && !r.exists {
		err = missingInstance("name", name)
	}
	return err
}

func (a *Admin) route(ctx context.Context, instance string) (*route, error) {
	now := a.o.Now()
	v, ok := a.profiles.routes.Load().Load(instance)
	if !ok {
		return a.readRoute(ctx, instance, now)
	}
	old := v.(*route)
	if now.Before(old.expires) {
		return old, nil
	}
	fresh, ok, err := old.again.Ask(ctx, now, false, func(ctx context.Context) (*route, error) { return a.readRoute(ctx, instance, now) })
	if err != nil || ok {
		return fresh, err
	}
	return old, nil
}

// readRoute reads what is known of an instance.
func (a *Admin) readRoute(ctx context.Context, instance string, now time.Time) (*route, error) {
	changes := a.profiles.changes()
	i, err := a.readInstance(ctx, instance)
	if err != nil {
		return nil, err
	}
	r := newRoute(i)
	r.expires = now.Add(a.o.ProfileTTL)
	a.profiles.add(instance, r, changes)
	return r, nil
}

func newRoute(i *instance) *route {
	if i == nil || i.deleting {
		return new(route)
	}
	r := &route{exists: true, profiles: make(map[string]Profile, len(i.profiles))}
	for id, pb := range i.profiles {
		p := Profile{ReadOnly: pb.GetDataBoostIsolationReadOnly() != nil}
		switch rp := pb.GetRoutingPolicy().(type) {
		case *adminpb.AppProfile_SingleClusterRouting_:
			p.ClusterID, p.SingleCluster = rp.SingleClusterRouting.GetClusterId(), true
			p.AllowTransactionalWrites = rp.SingleClusterRouting.GetAllowTransactionalWrites()
		case *adminpb.AppProfile_MultiClusterRoutingUseAny_:
			// All clusters are here; the first of them served the request.
			if ids := rp.MultiClusterRoutingUseAny.GetClusterIds(); len(ids) > 0 {
				p.ClusterID = ids[0]
			} else if ids := i.clusterIDs(); len(ids) > 0 {
				p.ClusterID = ids[0]
			}
		}
		p.Zone = zone(i.clusters[p.ClusterID])
		r.profiles[id] = p
	}
	return r
}

// zone returns the last part of a cluster's location.
func zone(c *adminpb.Cluster) string {
	l := c.GetLocation()
	return l[strings.LastIndexByte(l, '/')+1:]
}
