package client

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// prefetch is how many METADATA rows a lookup reads: neighbours are likely to
// be asked for next.
const lookupRows = 16

// patience is how long a call whose context has no earlier end waits for a
// tablet to be served.
const maxServingWait = 60 * time.Second

// A location is where a tablet was served.
type location struct {
	rows   row.Range
	tablet metadata.TabletID
	addr   string
}

// locations are those that are known of the tablets of one table, ascending.
// There may be gaps.
type locations struct {
	// list is never changed: mu is held by the caller that replaces it.
	list atomic.Pointer[[]location]
	mu   sync.Mutex
}

func (l *locations) snapshot() []location {
	if list := l.list.Load(); list != nil {
		return *list
	}
	return nil
}

// find returns the location of the tablet that holds key, nil if it is not known.
func (l *locations) find(key []byte) *location {
	list := l.snapshot()
	i := sort.Search(len(list), func(i int) bool { return !endsBefore(list[i].rows.End, key) })
	if i == len(list) || !list[i].rows.Contains(key) {
		return nil
	}
	return &list[i]
}

// endsBefore tells whether a range with that end has no row at or after key.
func endsBefore(end, key []byte) bool { return len(end) > 0 && bytes.Compare(end, key) <= 0 }

// learn adds locations, in the place of those that they overlap.
func (l *locations) add(news []location) {
	l.replace(func(list []location) []location {
		for _, n := range news {
			list = slices.DeleteFunc(list, func(o location) bool { return !o.rows.Intersect(n.rows).Empty() })
		}
		list = append(list, news...)
		slices.SortFunc(list, func(a, b location) int { return bytes.Compare(a.rows.Start, b.rows.Start) })
		return list
	})
}

func (l *locations) replace(change func([]location) []location) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := change(slices.Clone(l.snapshot()))
	l.list.Store(&list)
}

// forget drops a location that proved wrong.
func (l *locations) remove(n location) {
	l.replace(func(list []location) []location {
		return slices.DeleteFunc(list, func(o location) bool { return o.tablet == n.tablet && o.addr == n.addr })
	})
}

// Counters count what the location cache does.
type Counters struct {
	// Hits are calls that went to a remembered location, Lookups those that had
	// to read METADATA first, Wrong those that a server refused.
	Hits, Lookups, Wrong atomic.Int64
}

func (c *Client) locationsOf(table uint64) *locations {
	if l := (*c.tables.Load())[table]; l != nil {
		return l
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	tables := maps.Clone(*c.tables.Load())
	if tables[table] == nil {
		tables[table] = new(locations)
		c.tables.Store(&tables)
	}
	return tables[table]
}

// locate returns where the tablet that holds key is served, Unavailable if it
// is not at the moment.
func (c *Client) locate(ctx context.Context, table uint64, key []byte) (location, error) {
	l := c.locationsOf(table)
	if at := l.find(key); at != nil {
		c.Counters.Hits.Add(1)
		return *at, nil
	}
	c.Counters.Lookups.Add(1)
	rows, err := c.meta.Lookup(ctx, table, key, lookupRows)
	if err != nil {
		return location{}, err
	}
	var found *location
	var news []location
	for _, r := range rows {
		a := r.Assignment
		if a == nil || a.State != metadata.Open {
			continue
		}
		n := location{row.Range{Start: r.Start, End: r.End}, r.Tablet, a.Addr}
		news = append(news, n)
		if found == nil && n.rows.Contains(key) {
			found = &n
		}
	}
	if found == nil {
		return location{}, fault.New(fault.Unavailable, "the tablet of row %q is not served at the moment", key)
	}
	l.add(news)
	return *found, nil
}

// at calls do with the place where the tablet that holds key is served, again
// while nothing came of it and something may.
func (c *Client) withTablet(ctx context.Context, t *catalog.Table, key []byte, do func(rpc.TabletServer, rpc.Target, location) error) error {
	sch := t.Schema()
	var since time.Time // when it was first told to try again
	for attempt := 0; ; attempt++ {
		l, err := c.locate(ctx, sch.ID, key)
		if err == nil {
			err = do(c.o.Dialer.Dial(l.addr), rpc.Target{Tablet: l.tablet, Schema: sch.Version}, l)
			if err != nil {
				c.forgetOnError(err, sch.ID, l)
			}
		}
		if isRetryable(err) && since.IsZero() {
			since = time.Now()
		}
		if !isRetryable(err) || time.Since(since) > maxServingWait || c.backoff(ctx, attempt) != nil {
			c.reportWait(since)
			return err
		}
	}
}

// outdated tells whether a call that was refused with err, and has done nothing,
// is to be made again: it was told that something is not there, and the lock
// service knows a newer schema of its table than was, or another table of that
// name. Others may have been told so before this process has heard of it.
func (c *Client) schemaChanged(ctx context.Context, was *schema.Table, err error) bool {
	if fault.KindOf(err) != fault.NotFound {
		return false
	}
	t, err := c.o.Schemas.Refresh(ctx, was.Name)
	return err == nil && t != nil && t.Schema() != was
}

// learnFrom forgets a location that an error proves wrong.
func (c *Client) forgetOnError(err error, table uint64, l location) {
	if errors.Is(err, rpc.ErrNotServing) {
		c.Counters.Wrong.Add(1)
	}
	if errors.Is(err, fault.Unavailable) && !isOverloaded(err) {
		c.locationsOf(table).remove(l)
	}
}

// waited reports the time since a call was first told to try again, if it was.
func (c *Client) reportWait(since time.Time) {
	if !since.IsZero() {
		c.o.Waited(time.Since(since))
	}
}

// again tells whether a call that failed so did nothing and may do better.
func isRetryable(err error) bool {
	var final errFinal
	return errors.Is(err, fault.Unavailable) && !errors.Is(err, rpc.ErrUnknown) && !errors.As(err, &final) && !isOverloaded(err)
}

// busy tells whether a server refused a call because it has too much to do. It is
// the right one; the caller of this process is told when to try again.
func isOverloaded(err error) bool {
	var f *fault.Error
	return errors.As(err, &f) && f.RetryAfter > 0
}

// pause waits between two attempts.
func (c *Client) backoff(ctx context.Context, attempt int) error {
	return rpc.Backoff(ctx, c.o.Ended, attempt, 100*time.Millisecond)
}
