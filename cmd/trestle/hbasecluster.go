package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/membership"
	"github.com/trestledb/trestle/cluster/node"
	"github.com/trestledb/trestle/compat/hbase/model"
)

// joinHBase returns how a process tells the others that it serves HBase clients,
// and hears of them. tablets is the name of its tablet server, empty if it has
// none.
func joinHBase(n *node.Node, tablets string, ttl time.Duration, log *slog.Logger) func(context.Context, model.Server, func([]model.Place)) (func(), error) {
	return func(ctx context.Context, me model.Server, set func([]model.Place)) (leave func(), err error) {
		here := model.Place{Server: me, Tablets: tablets}
		value, err := json.Marshal(here)
		if err != nil {
			return nil, err
		}
		leave, err = membership.Join(ctx, membership.Options{
			Lock: n.Lock, Prefix: catalog.HBasePrefix, Key: catalog.HBasePrefix + here.String(), Value: value, TTL: ttl, Log: log,
			Changed: func(items []lock.Item) error {
				places, err := hbasePlaces(items, here)
				if err == nil {
					set(places)
				}
				return err
			},
		})
		if err != nil {
			return nil, fmt.Errorf("tell the cluster of this HBase server: %w", err)
		}
		return leave, nil
	}
}

// hbasePlaces returns the servers of HBase clients by name, of which this process is
// one whatever the items say.
func hbasePlaces(items []lock.Item, here model.Place) ([]model.Place, error) {
	newest := map[string]model.Place{} // by address: of a process that was killed the item is still there
	for _, i := range items {
		if !i.Held {
			continue // a recovery of an earlier version left it: its process is gone
		}
		var p model.Place
		if err := json.Unmarshal(i.Value, &p); err != nil {
			return nil, fmt.Errorf("item %s: %w", i.Key, err)
		}
		if p.StartCode > newest[p.HostPort()].StartCode {
			newest[p.HostPort()] = p
		}
	}
	newest[here.HostPort()] = here
	var places []model.Place
	for _, p := range newest {
		places = append(places, p)
	}
	slices.SortFunc(places, func(a, b model.Place) int { return cmp.Compare(a.String(), b.String()) })
	return places, nil
}
