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
	"github.com/trestledb/trestle/engine/request"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// lookupRows is how many METADATA rows a lookup reads: neighbours are likely to
// be asked for next.
const lookupRows = 16

// maxServingWait is how long a call whose context has no earlier end waits for a
// tablet to be served.
const maxServingWait = 60 * time.Second

// A location is where a tablet was served.
type location struct {
	rows   row.Range
	tablet metadata.TabletID
	addr   string
}

// locations are the cached ones of one table's tablets, ascending. There may be gaps.
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

// add adds locations, in the place of the ones that they overlap.
func (l *locations) add(fresh []location) {
	l.replace(func(list []location) []location {
		for _, n := range fresh {
			list = slices.DeleteFunc(list, func(o location) bool { return !o.rows.Intersect(n.rows).Empty() })
		}
		list = append(list, fresh...)
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

// remove drops a location that proved wrong.
func (l *locations) remove(n location) {
	l.replace(func(list []location) []location {
		return slices.DeleteFunc(list, func(o location) bool { return o.tablet == n.tablet && o.addr == n.addr })
	})
}

// removeOverlapping drops the locations of tablets with rows of a range.
func (l *locations) removeOverlapping(rows row.Range) {
	l.replace(func(list []location) []location {
		return slices.DeleteFunc(list, func(o location) bool { return !o.rows.Intersect(rows).Empty() })
	})
}

// Counters count what the location cache does.
type Counters struct {
	// Hits are calls that went to a cached location. Lookups had to read METADATA first.
	// Wrong were refused by the server.
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
	span := request.From(ctx).StartSpan("locate tablet")
	rows, err := c.meta.Lookup(ctx, table, key, lookupRows)
	request.End(span, err)
	if err != nil {
		return location{}, err
	}
	var found *location
	var fresh []location
	for _, r := range rows {
		a := r.Assignment
		if a == nil || a.State != metadata.Open {
			continue
		}
		n := location{row.Range{Start: r.Start, End: r.End}, r.Tablet, a.Addr}
		fresh = append(fresh, n)
		if found == nil && n.rows.Contains(key) {
			found = &n
		}
	}
	if found == nil {
		return location{}, fault.New(fault.Unavailable, "the tablet of row %q is not served at the moment", key)
	}
	l.add(fresh)
	return *found, nil
}

// withTablet calls do with the location of the tablet that holds key. It tries again as
// long as do has done nothing and may succeed later.
func (c *Client) withTablet(ctx context.Context, t *catalog.Table, key []byte, do func(rpc.TabletServer, rpc.Target, location) error) error {
	sch := t.Schema()
	var since time.Time // when it first had to be repeated
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

// schemaChanged tells whether to repeat a call that was refused with err and has done
// nothing. It is repeated if was lacks something that the call names, and the lock service
// has a newer schema, or another table of that name. Other processes may know the newer
// schema before this one does.
func (c *Client) schemaChanged(ctx context.Context, was *schema.Table, err error) bool {
	if fault.KindOf(err) != fault.NotFound {
		return false
	}
	t, err := c.o.Schemas.Refresh(ctx, was.Name)
	return err == nil && t != nil && t.Schema() != was
}

// forgetOnError forgets a location that an error proves wrong.
func (c *Client) forgetOnError(err error, table uint64, l location) {
	if errors.Is(err, rpc.ErrNotServing) {
		c.Counters.Wrong.Add(1)
	}
	if errors.Is(err, fault.Unavailable) && !isOverloaded(err) {
		c.locationsOf(table).remove(l)
	}
}

// reportWait reports the time since a call first had to be repeated, if it had.
func (c *Client) reportWait(since time.Time) {
	if !since.IsZero() {
		c.o.Waited(time.Since(since))
	}
}

// isRetryable tells whether a call that failed so did nothing and may do better.
func isRetryable(err error) bool {
	var final errFinal
	return errors.Is(err, fault.Unavailable) && !errors.Is(err, rpc.ErrUnknown) && !errors.As(err, &final) && !isOverloaded(err)
}

// isOverloaded tells whether a server refused a call because it has too much to do. It is
// the right one; the error tells the caller when to try again.
func isOverloaded(err error) bool {
	var f *fault.Error
	return errors.As(err, &f) && f.RetryAfter > 0
}

// backoff waits between two attempts.
func (c *Client) backoff(ctx context.Context, attempt int) error {
	return rpc.Backoff(ctx, c.o.Ended, attempt, 100*time.Millisecond)
}
