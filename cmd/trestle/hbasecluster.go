package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/compat/hbase/model"
)

// joinHBase returns how a process tells the others that it serves HBase clients,
// and hears of them. tablets is the name of its tablet server, empty if it has
// none.
func (n *node) joinHBase(tablets string) func(context.Context, model.Server, func([]model.Place)) (func(), error) {
	return func(ctx context.Context, me model.Server, set func([]model.Place)) (leave func(), err error) {
		j := &hbaseMember{n: n, me: model.Place{Server: me, Tablets: tablets}, set: set}
		session, err := j.register(ctx)
		if err != nil {
			return nil, fmt.Errorf("tell the cluster of this HBase server: %w", err)
		}
		revision, err := j.list(ctx)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("look for the cluster's HBase servers: %w", err), session.Close(ctx))
		}
		life, end := context.WithCancel(n.life)
		var work sync.WaitGroup
		work.Go(func() { j.hold(life, session) })
		work.Go(func() { j.follow(life, revision) })
		return func() {
			end()
			work.Wait()
		}, nil
	}
}

// An hbaseMember is one of the processes of a cluster that serve HBase clients.
type hbaseMember struct {
	n   *node
	me  model.Place
	set func([]model.Place)
}

// register makes the item.
func (j *hbaseMember) register(ctx context.Context) (lock.Session, error) {
	value, err := json.Marshal(j.me)
	if err != nil {
		return nil, err
	}
	session, err := j.n.lock.NewSession(ctx, j.n.cfg.TTL)
	if err != nil {
		return nil, err
	}
	if _, err := session.Hold(ctx, catalog.HBasePrefix+j.me.String(), value); err != nil {
		now, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		return nil, errors.Join(err, session.Close(now))
	}
	return session, nil
}

// hold keeps the item until life ends. A session that ends is replaced: the
// server serves on, and clients are to find it again.
func (j *hbaseMember) hold(life context.Context, session lock.Session) {
	for {
		select {
		case <-session.Done():
		case <-life.Done():
		}
		now, cancel := context.WithTimeout(context.WithoutCancel(life), time.Second)
		_ = session.Close(now) // or it ends by itself
		cancel()
		for {
			if life.Err() != nil {
				return
			}
			var err error
			if session, err = j.register(life); err == nil {
				break
			}
			j.n.log.Warn("this HBase server is not in the lock service, will try again", "error", err)
			j.n.wait(life)
		}
	}
}

// list tells who lives now, and returns from where to watch.
func (j *hbaseMember) list(ctx context.Context) (int64, error) {
	items, revision, err := j.n.lock.List(ctx, catalog.HBasePrefix)
	if err != nil {
		return 0, err
	}
	newest := map[string]model.Place{} // by address: of a process that was killed the item is still there
	for _, i := range items {
		var p model.Place
		if err := json.Unmarshal(i.Value, &p); err != nil {
			return 0, fmt.Errorf("item %s: %w", i.Key, err)
		}
		if p.StartCode > newest[p.HostPort()].StartCode {
			newest[p.HostPort()] = p
		}
	}
	newest[j.me.HostPort()] = j.me
	var places []model.Place
	for _, p := range newest {
		places = append(places, p)
	}
	slices.SortFunc(places, func(a, b model.Place) int { return cmp.Compare(a.String(), b.String()) })
	j.set(places)
	return revision, nil
}

// follow tells of changes until life ends.
func (j *hbaseMember) follow(life context.Context, revision int64) {
	changed := errors.New("changed")
	for life.Err() == nil {
		err := j.n.lock.Watch(life, catalog.HBasePrefix, revision, func(lock.Event) error { return changed })
		if !errors.Is(err, changed) {
			j.n.wait(life)
		}
		for life.Err() == nil {
			if revision, err = j.list(life); err == nil {
				break
			}
			j.n.wait(life)
		}
	}
}

// wait waits a moment before the lock service is asked again.
func (n *node) wait(ctx context.Context) {
	select {
	case <-time.After(500 * time.Millisecond):
	case <-ctx.Done():
	}
}
