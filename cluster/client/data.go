package client

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/plan"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// errFinal is the error of a read that cannot go on elsewhere: it ended within a
// row, or the Writer wants no more.
type errFinal struct{ error }

func (e errFinal) Unwrap() error { return e.error }

// A progressWriter passes rows on and knows how far a read has come, so that it can go
// on elsewhere.
type progressWriter struct {
	scan.Writer
	encoded  scan.EncodedWriter // nil: rows come as cells only
	near     bool               // Options.Near: the tablet itself asks whether ctx has ended
	ctx      context.Context
	reversed bool
	open     bool   // within a row
	cells    int64  // of it
	last     []byte // the row that is open, or up to which everything is done
	done     bool   // whether last is done
	stats    scan.Stats
	full     bool
	err      error // of the Writer
}

var (
	_ scan.FragmentWriter = (*progressWriter)(nil)
	_ scan.SpaceWriter    = (*progressWriter)(nil)
)

func (w *progressWriter) StartRow(key []byte) {
	w.open, w.done, w.cells, w.last = true, false, 0, append(w.last[:0], key...)
	w.Writer.StartRow(key)
}

func (w *progressWriter) Cell(c *row.Cell) {
	w.cells++
	w.Writer.Cell(c)
}

func (w *progressWriter) EndRow() (bool, error) {
	full, err := w.Writer.EndRow()
	return full, w.noteEnd(min(w.cells, 1), w.cells, full, err)
}

// noteEnd notes the Writer's answer to the end of some rows.
func (w *progressWriter) noteEnd(rows, cells int64, full bool, err error) error {
	w.open, w.full, w.err = false, w.full || full, err
	if err != nil {
		return err
	}
	w.done = true
	w.stats.RowsReturned += rows
	w.stats.CellsReturned += cells
	if !w.near && w.ctx.Err() != nil {
		return context.Cause(w.ctx) // many rows may have come at once
	}
	return nil
}

func (w *progressWriter) Scanned(key []byte) {
	// The reader is at a place where one that writes to the client itself would
	// flush.
	w.done, w.full, w.last = true, true, append(w.last[:0], key...)
	w.Writer.Scanned(key)
}

func (w *progressWriter) Flush() error {
	w.full = false
	w.err = w.Writer.Flush()
	return w.err
}

// Space implements scan.SpaceWriter.
func (w *progressWriter) Space() int { return scan.Space(w.Writer) }

// Encoding implements scan.EncodedWriter.
func (w *progressWriter) Encoding() uint64 {
	if w.encoded == nil {
		return 0
	}
	return w.encoded.Encoding()
}

// Fragment implements scan.FragmentWriter.
func (w *progressWriter) Fragment() []byte { return scan.Fragment(w.Writer) }

// Room implements scan.EncodedWriter.
func (w *progressWriter) Room(n int) (b []byte, err error) {
	b, w.err = w.encoded.Room(n)
	return b, w.err
}

// Encoded implements scan.EncodedWriter.
func (w *progressWriter) Encoded(p *scan.Piece) (bool, error) {
	w.last = append(w.last[:0], p.Key...)
	full, err := w.encoded.Encoded(p)
	if p.Open {
		w.open, w.done, w.err = true, false, err
		return full, err
	}
	return full, w.noteEnd(p.Rows, p.Cells, full, err)
}

// rest returns the part of ranges after the last row that is done.
func (w *progressWriter) rest(ranges []row.Range) []row.Range {
	if !w.done {
		return ranges
	}
	behind := row.Range{End: row.Successor(w.last)}
	ahead := row.Range{Start: row.Successor(w.last)}
	if w.reversed {
		behind, ahead = row.Range{Start: w.last}, row.Range{End: w.last}
		if len(w.last) == 0 {
			return nil
		}
	}
	var out []row.Range
	for _, r := range ranges {
		if behind.Intersect(r).Empty() {
			out = append(out, r)
		} else if r = r.Intersect(ahead); !r.Empty() {
			out = append(out, r)
		}
	}
	return out
}

// ReadRows implements backend.Data. While a tablet is read, the next one is
// found and its first rows are.
func (c *Client) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	t, err := c.o.Schemas.Named(ctx, req.Table)
	if err != nil {
		return scan.Stats{}, err
	}
	was := t.Schema()
	r := readCalls.Get().(*readCall)
	r.c, r.ctx, r.t, r.req, r.to, r.left = c, ctx, t, req, w, append(r.room[:0], req.Ranges...)
	r.progress = progressWriter{Writer: w, encoded: scan.Encoded(w), near: c.o.Near, ctx: ctx, reversed: req.Reversed, last: r.key[:0]}
	defer func() {
		// Last of all: from here on it is another caller's.
		r.cancelPrefetch()
		*r = readCall{}
		readCalls.Put(r)
	}()
	for len(r.left) > 0 && (req.Limit == 0 || r.stats.RowsReturned < req.Limit) {
		if r.prefetched != nil && r.prefetched.covers(r.left) {
			err = r.usePrefetched()
		} else {
			err = r.readTablet()
		}
		if err != nil {
			break
		}
	}
	if err != nil && r.nothingRead() && c.schemaChanged(ctx, was, err) {
		r.cancelPrefetch()
		return c.ReadRows(ctx, req, w)
	}
	return r.stats, err
}

// readCalls pools readCalls that are not in use, and empty.
var readCalls = sync.Pool{New: func() any { return new(readCall) }}

// A readCall is a call of ReadRows.
type readCall struct {
	c          *Client
	ctx        context.Context
	t          *catalog.Table
	req        *scan.Request
	to         scan.Writer
	left       []row.Range // to be read
	stats      scan.Stats
	prefetched *prefetchedRead // may be nil

	progress progressWriter // of the tablet that is being read
	ask      rpc.Read       // of that tablet too
	key      [64]byte       // room for a short one
	room     [1]row.Range
}

// nothingRead tells whether nothing has been read, not even that there is nothing.
func (r *readCall) nothingRead() bool {
	all := r.req.Ranges
	return !r.progress.open && len(r.left) > 0 && bytes.Equal(r.left[0].Start, all[0].Start) && bytes.Equal(r.left[len(r.left)-1].End, all[len(all)-1].End)
}

// resetProgress returns the progressWriter of another tablet.
func (r *readCall) resetProgress() *progressWriter {
	t := &r.progress
	t.open, t.done, t.full, t.stats, t.err = false, false, false, scan.Stats{}, nil
	return t
}

// readTablet reads from the tablet that has the start of left.
func (r *readCall) readTablet() error {
	key := r.left[0].Start
	if r.req.Reversed {
		key = lastRowBefore(r.left[len(r.left)-1].End)
	}
	return r.c.withTablet(r.ctx, r.t, key, func(s rpc.TabletServer, at rpc.Target, l location) error {
		mine, other := plan.Cut(r.left, l.rows, r.req.Reversed)
		if len(mine) == 0 {
			// Reversed, the key is a guess: the tablet that holds it ends there.
			r.left = other
			return nil
		}
		r.startPrefetch(other)
		r.ask = rpc.Read{Ranges: mine, Reversed: r.req.Reversed, Filter: r.req.Filter}
		if r.req.Limit > 0 {
			r.ask.Limit = r.req.Limit - r.stats.RowsReturned
		}
		track := r.resetProgress()
		rest, stats, err := s.ReadRows(r.ctx, at, &r.ask, track)
		return r.recordResult(track, mine, other, rest, stats, err)
	})
}

// startPrefetch begins to read the first tablet of ranges, unless one is being read ahead.
// How many rows of a limit are left for the next tablet is not known.
func (r *readCall) startPrefetch(ranges []row.Range) {
	if r.prefetched != nil && r.prefetched.cannotCover(ranges) {
		r.cancelPrefetch() // tablets have changed
	}
	if r.prefetched == nil && len(ranges) > 0 && r.req.Limit == 0 && !r.req.Reversed && !r.c.o.Near {
		r.prefetched = r.c.startPrefetch(r.ctx, r.t, ranges, r.req, r.to)
	}
}

// usePrefetched passes on what was read ahead.
func (r *readCall) usePrefetched() error {
	a := r.prefetched
	r.prefetched = nil
	defer a.stop()
	other := r.left[len(a.ranges):]
	r.startPrefetch(other)
	track := r.resetProgress()
	a.drainTo(track)
	err := r.recordResult(track, a.ranges, other, a.rest, a.stats, a.err)
	if err != nil && isRetryable(err) && r.ctx.Err() == nil {
		return nil // the rest of left is read by another call
	}
	return err
}

// recordResult notes the result of reading mine, and sets left.
func (r *readCall) recordResult(track *progressWriter, mine, other, rest []row.Range, stats scan.Stats, err error) error {
	if err != nil {
		// Rows that have come are as good as if they had been read alone.
		r.stats.RowsReturned += track.stats.RowsReturned
		r.stats.CellsReturned += track.stats.CellsReturned
		rest = track.rest(mine)
		if track.open || track.err != nil {
			return errFinal{err}
		}
	} else {
		r.stats.RowsSeen += stats.RowsSeen
		r.stats.CellsSeen += stats.CellsSeen
		r.stats.RowsReturned += stats.RowsReturned
		r.stats.CellsReturned += stats.CellsReturned
	}
	if r.req.Reversed {
		r.left = slices.Concat(other, rest)
	} else {
		r.left = slices.Concat(rest, other)
	}
	if err == nil && track.full {
		err = r.to.Flush()
	}
	return err
}

// cancelPrefetch gives up a prefetch that is not used.
func (r *readCall) cancelPrefetch() {
	if r.prefetched != nil {
		r.prefetched.stop()
		r.prefetched = nil
	}
}

// lastRowBefore returns a key in the tablet that holds the last rows before end. That
// tablet ends at or after end, so a key just below end will do. No key is the last one
// below end, but one with many FF behind is close enough. A tablet that begins between the
// two would begin at a longer key than is allowed.
func lastRowBefore(end []byte) []byte {
	if len(end) == 0 {
		return bytes.Repeat([]byte{0xFF}, maxKey+1)
	}
	k := slices.Clone(end)
	n := len(k) - 1
	if k[n] == 0 {
		return k[:n]
	}
	k[n]--
	return append(k, bytes.Repeat([]byte{0xFF}, maxKey+1-len(k))...)
}

const maxKey = 4 << 10

// MutateRow implements backend.Data.
func (c *Client) MutateRow(ctx context.Context, table string, e *row.Entry) error {
	t, err := c.writable(ctx, table)
	if err != nil {
		return err
	}
	was := t.Schema()
	err = c.withTablet(ctx, t, e.Key, func(s rpc.TabletServer, at rpc.Target, _ location) error { return s.MutateRow(ctx, at, e) })
	if err != nil && c.schemaChanged(ctx, was, err) {
		return c.MutateRow(ctx, table, e)
	}
	return err
}

// MutateRows implements backend.Data. The entries of one tablet go together;
// tablets are asked in parallel.
func (c *Client) MutateRows(ctx context.Context, table string, entries []row.Entry, done func(i int, err error)) error {
	t, err := c.writable(ctx, table)
	if err != nil {
		return err
	}
	was := t.Schema()
	// An entry that can never be applied refuses the others too, wherever they go. A
	// server that gets them all sees to that itself.
	whole := c.oneTablet(was.ID, entries)
	if whole == nil {
		if err := checkEntries(was, c.o.Now(), entries); err != nil {
			return err
		}
	}
	todo := make([]int, len(entries))
	for i := range todo {
		todo[i] = i
	}
	end := time.Now().Add(maxServingWait)
	var mu sync.Mutex
	missing := map[int]error{} // entries that name something that does not exist
	tell := func(i int, err error) {
		mu.Lock()
		defer mu.Unlock()
		if fault.KindOf(err) == fault.NotFound {
			missing[i] = err
			return
		}
		done(i, err)
	}
	var since time.Time
	for attempt := 0; len(todo) > 0; attempt++ {
		m := &mutateAttempt{c: c, table: was.ID, report: tell}
		if whole != nil {
			errs, err := c.o.Dialer.Dial(whole.addr).MutateRows(ctx, rpc.Target{Tablet: whole.tablet, Schema: was.Version}, entries)
			if errors.Is(err, fault.Invalid) {
				return err
			}
			if err != nil { // before it looked at them, perhaps
				if err := checkEntries(was, c.o.Now(), entries); err != nil {
					return err
				}
			}
			m.recordResults(*whole, todo, errs, err)
			whole = nil
		} else {
			m.send(ctx, t.Schema(), entries, todo)
		}
		todo = m.awaitRetry(ctx, attempt, end)
		if len(todo) > 0 && since.IsZero() {
			since = time.Now()
		}
	}
	c.reportWait(since)
	if len(missing) == 0 {
		return nil
	}
	left := slices.Sorted(maps.Keys(missing))
	if c.schemaChanged(ctx, was, missing[left[0]]) {
		rest := make([]row.Entry, len(left))
		for k, i := range left {
			rest[k] = entries[i]
		}
		if c.MutateRows(ctx, table, rest, func(k int, err error) { done(left[k], err) }) == nil {
			return nil
		}
	}
	for i, err := range missing {
		done(i, err)
	}
	return nil
}

// oneTablet returns where the tablet that has the rows of all entries was served,
// nil if there is none, or it is not known.
func (c *Client) oneTablet(table uint64, entries []row.Entry) *location {
	if len(entries) == 0 {
		return nil
	}
	l := c.locationsOf(table).find(entries[0].Key)
	for i := range entries {
		if l == nil || !l.rows.Contains(entries[i].Key) {
			return nil
		}
	}
	return l
}

// checkEntries returns why one of the entries can never be applied.
func checkEntries(sch *schema.Table, now time.Time, entries []row.Entry) error {
	p := plan.New(sch, now)
	for i := range entries {
		e := &entries[i]
		_, err := p.Check(e.Key, e.Mutations, "mutations")
		if err == nil {
			err = plan.CheckToken(e.Token, now)
		}
		if errors.Is(err, fault.Invalid) {
			return plan.InEntry(err, i)
		}
	}
	return nil
}

// mutateAttempt is one attempt to apply entries.
type mutateAttempt struct {
	c      *Client
	table  uint64
	report func(int, error) // what became of an entry

	mu    sync.Mutex
	retry []int // entries to be asked for again
	last  error // why
}

// recordResults notes a server's answers about the entries that it was sent.
func (m *mutateAttempt) recordResults(at location, asked []int, errs []error, err error) {
	forgotten := false
	for k, i := range asked {
		one := err
		if err == nil {
			one = errs[k]
		}
		if one != nil && !forgotten && errors.Is(one, fault.Unavailable) && !isOverloaded(one) {
			m.c.locationsOf(m.table).remove(at)
			forgotten = true
		}
		if one == nil || !isRetryable(one) {
			m.report(i, one)
			continue
		}
		m.mu.Lock()
		m.retry, m.last = append(m.retry, i), one
		m.mu.Unlock()
	}
}

// awaitRetry waits and returns the entries to send again.
func (m *mutateAttempt) awaitRetry(ctx context.Context, attempt int, end time.Time) []int {
	if len(m.retry) == 0 {
		return nil
	}
	if time.Now().After(end) || m.c.backoff(ctx, attempt) != nil {
		for _, i := range m.retry {
			m.report(i, m.last)
		}
		return nil
	}
	slices.Sort(m.retry) // entries of one row stay in order
	return m.retry
}

// send asks for the entries of todo once, each at the server of its tablet.
func (m *mutateAttempt) send(ctx context.Context, sch *schema.Table, entries []row.Entry, todo []int) {
	type tabletBatch struct {
		at      location
		entries []int
	}
	var parts []*tabletBatch
	byTablet := map[metadata.TabletID]*tabletBatch{}
	// If the tablet of a row could not be found, later entries of that row wait too, or
	// they would come first.
	waiting := map[string]bool{}
	for _, i := range todo {
		if len(waiting) > 0 && waiting[string(entries[i].Key)] {
			m.retry = append(m.retry, i)
			continue
		}
		l, err := m.c.locate(ctx, m.table, entries[i].Key)
		if err != nil {
			if m.last = err; !isRetryable(err) {
				m.report(i, err)
			} else {
				m.retry = append(m.retry, i)
				waiting[string(entries[i].Key)] = true
			}
			continue
		}
		p := byTablet[l.tablet]
		if p == nil {
			p = &tabletBatch{at: l}
			byTablet[l.tablet] = p
			parts = append(parts, p)
		}
		p.entries = append(p.entries, i)
	}
	var asking sync.WaitGroup
	slots := make(chan struct{}, 16)
	for _, p := range parts {
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			mine := make([]row.Entry, len(p.entries))
			for k, i := range p.entries {
				mine[k] = entries[i]
			}
			errs, err := m.c.o.Dialer.Dial(p.at.addr).MutateRows(ctx, rpc.Target{Tablet: p.at.tablet, Schema: sch.Version}, mine)
			m.recordResults(p.at, p.entries, errs, err)
		})
	}
	asking.Wait()
}

// CheckAndMutateRow implements backend.Data.
func (c *Client) CheckAndMutateRow(ctx context.Context, table string, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (matched bool, err error) {
	t, err := c.writable(ctx, table)
	if err != nil {
		return false, err
	}
	was := t.Schema()
	err = c.withTablet(ctx, t, key, func(s rpc.TabletServer, at rpc.Target, _ location) error {
		var err error
		matched, err = s.CheckAndMutateRow(ctx, at, key, predicate, then, otherwise)
		return err
	})
	if err != nil && c.schemaChanged(ctx, was, err) {
		return c.CheckAndMutateRow(ctx, table, key, predicate, then, otherwise)
	}
	return matched, err
}

// ReadModifyWriteRow implements backend.Data.
func (c *Client) ReadModifyWriteRow(ctx context.Context, table string, key []byte, rules []row.Rule) (cells []row.Cell, err error) {
	t, err := c.writable(ctx, table)
	if err != nil {
		return nil, err
	}
	was := t.Schema()
	err = c.withTablet(ctx, t, key, func(s rpc.TabletServer, at rpc.Target, _ location) error {
		var err error
		cells, err = s.ReadModifyWriteRow(ctx, at, key, rules)
		return err
	})
	if err != nil && c.schemaChanged(ctx, was, err) {
		return c.ReadModifyWriteRow(ctx, table, key, rules)
	}
	return cells, err
}

// tabletRows calls each with the METADATA rows of the tablets of a table that overlap
// within, in order.
func (c *Client) tabletRows(ctx context.Context, table uint64, within row.Range, each func(*metadata.Row) error) error {
	for key := within.Start; ; {
		rows, err := c.meta.Lookup(ctx, table, key, 64)
		if err == nil && len(rows) == 0 {
			err = fault.New(fault.NotFound, "the cluster has no METADATA tablet for %q yet", key)
		}
		if err != nil {
			return err
		}
		for _, r := range rows {
			if len(within.End) > 0 && bytes.Compare(r.Start, within.End) >= 0 {
				return nil
			}
			if err := each(r); err != nil {
				return err
			}
			if key = r.End; len(key) == 0 {
				return nil
			}
		}
	}
}

// Owners calls each with the end of every tablet of a table, in order, and the name of its
// tablet server, empty if it has none.
func (c *Client) Owners(ctx context.Context, table string, each func(end []byte, server string) error) error {
	t, err := c.o.Schemas.Named(ctx, table)
	if err != nil {
		return err
	}
	return c.tabletRows(ctx, t.Schema().ID, row.All, func(r *metadata.Row) error {
		server := ""
		if a := r.Assignment; a != nil {
			server = a.Server
		}
		return each(slices.Clone(r.End), server)
	})
}

// SampleRowKeys implements backend.Data.
func (c *Client) SampleRowKeys(ctx context.Context, table string, within row.Range, emit func(scan.Sample) error) error {
	t, err := c.o.Schemas.Named(ctx, table)
	if err != nil {
		return err
	}
	var offset int64
	err = c.tabletSizes(ctx, t.Schema().ID, func(r *metadata.Row, size int64) error {
		offset += size
		if len(r.End) == 0 || bytes.Compare(r.End, within.Start) <= 0 {
			return nil
		}
		if len(within.End) > 0 && bytes.Compare(r.End, within.End) >= 0 {
			return errStop
		}
		return emit(scan.Sample{Key: slices.Clone(r.End), Offset: offset})
	})
	if err != nil && !errors.Is(err, errStop) {
		return err
	}
	return emit(scan.Sample{Key: within.End, Offset: offset})
}

// TabletCuts implements backend.Data.
func (c *Client) TabletCuts(ctx context.Context, table string, within row.Range) ([][]byte, error) {
	t, err := c.o.Schemas.Named(ctx, table)
	if err != nil {
		return nil, err
	}
	var out [][]byte
	err = c.tabletSizes(ctx, t.Schema().ID, func(r *metadata.Row, size int64) error {
		if size < scan.MinCutBytes || r.Assignment == nil || within.Intersect(row.Range{Start: r.Start, End: r.End}).Empty() {
			return nil
		}
		// The tablet may be about to move. It is read as a whole then.
		cuts, _ := c.o.Dialer.Dial(r.Assignment.Addr).Cuts(ctx, r.Tablet)
		for _, key := range cuts {
			if within.Contains(key) && (len(out) == 0 || bytes.Compare(key, out[len(out)-1]) > 0) {
				out = append(out, key)
			}
		}
		return nil
	})
	return out, err
}

var errStop = errors.New("enough")
