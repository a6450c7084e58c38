package server

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/filter"
	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

// A scanner is a scan of one region between two calls.
type scanner struct {
	id     uint64
	region *model.Region
	t      *model.Table // nil for computed tables
	spec   *pb.Scan
	q      *query
	opened int64 // ms
	user   string

	// running is 1 while a call uses what follows, and when the scanner is closed.
	running  atomic.Int32
	nextSeq  uint64
	rest     []row.Range // unread
	computed *table      // unread rows of a computed table
	held     []filter.Cell
	heldAt   int   // cells of held that were sent
	taken    int64 // by held, of Options.Memory and scanners.held
	kept     int64 // by everything else, of the same
	closed   bool
	done     bool // no row is left, or wanted
	limit    int  // of rows that the client still wants; -1: no limit

	lease atomic.Int64 // Unix ns
}

// scanners are those that are open, and the ids of those that were a moment
// ago.
type scanners struct {
	max    int
	lease  time.Duration
	memory *budget.Budget
	held   *budget.Budget // half of memory: requests go on whatever scanners keep
	mu     struct {
		sync.Mutex
		open   map[uint64]*scanner
		closed map[uint64]closedScanner
		next   uint64
	}
}

type closedScanner struct {
	nextSeq uint64
	until   time.Time
}

func newScanners(n int, lease time.Duration, memory *budget.Budget) *scanners {
	s := &scanners{max: n, lease: lease, memory: memory, held: budget.New(memory.Limit() / 2)}
	s.mu.open, s.mu.closed = map[uint64]*scanner{}, map[uint64]closedScanner{}
	// Ids of an earlier process are not ours.
	s.mu.next = uint64(time.Now().UnixMilli()) << 20
	return s
}

func (s *scanners) add(sc *scanner) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.open) >= s.max {
		return wire.RegionTooBusy.New("%d scanners are open", len(s.mu.open))
	}
	s.mu.next++
	sc.id = s.mu.next
	sc.running.Store(1)
	s.renew(sc)
	s.mu.open[sc.id] = sc
	return nil
}

func (s *scanners) renew(sc *scanner) { sc.lease.Store(time.Now().Add(s.lease).UnixNano()) }

// rest ends a call of a scanner, which others may use then, unless it is closed.
func (s *scanners) rest(sc *scanner) {
	if !sc.closed {
		s.renew(sc)
		sc.running.Store(0)
	}
}

// hold keeps cells of a row, the rest of an answer with the given room, for later calls.
func (s *scanners) hold(sc *scanner, cells []filter.Cell, answer *room) error {
	n := int64(len(cells[0].Row)) + int64(len(cells))*cellBytes
	for i := range cells {
		n += int64(len(cells[i].Qualifier) + len(cells[i].Value))
	}
	if !s.held.Try(n) {
		return noRoom(s.held, "row", n)
	}
	if err := answer.pass("row", n); err != nil {
		s.held.Release(n)
		return err
	}
	sc.held, sc.heldAt, sc.taken = copyCells(cells), 0, n
	return nil
}

// scannerBytes is what a scanner may keep beside rows without asking: few need more.
// There is room for so many scanners.
const scannerBytes = 4 << 10

// bytes returns about what a scanner takes that is not held, beside its request.
func (sc *scanner) bytes() int64 {
	n := int64(unsafe.Sizeof(scanner{})+unsafe.Sizeof(query{})) + int64(len(sc.q.families))*int64(unsafe.Sizeof(family{}))
	if sc.q.filter != nil {
		n += sc.q.filter.Bytes()
	}
	if sc.computed != nil {
		for i := range sc.computed.rows {
			r := &sc.computed.rows[i]
			n += int64(unsafe.Sizeof(*r)) + int64(len(r.key)) + int64(len(r.cells))*int64(unsafe.Sizeof(row.Cell{}))
			for j := range r.cells {
				n += int64(len(r.cells[j].Qualifier) + len(r.cells[j].Value))
			}
		}
	}
	return n
}

// keep keeps a scanner that its first call leaves open, whose request takes n bytes.
func (s *scanners) keep(sc *scanner, n int64, answer *room) error {
	if sc.computed != nil {
		sc.computed.rows = slices.Clone(sc.computed.rows) // without those that were sent
	}
	if n += sc.bytes() - scannerBytes; n <= 0 {
		return nil
	}
	if !s.held.Try(n) {
		return noRoom(s.held, "scanner", n)
	}
	answer.filtered() // its filter is in n
	if err := answer.pass("scanner", n); err != nil {
		s.held.Release(n)
		return err
	}
	sc.kept = n
	return nil
}

// end lets go of all that a scanner takes.
func (s *scanners) end(sc *scanner) {
	s.drop(sc)
	s.held.Release(sc.kept)
	s.memory.Release(sc.kept)
	sc.kept = 0
}

// drop lets go of the cells that a scanner holds.
func (s *scanners) drop(sc *scanner) {
	s.held.Release(sc.taken)
	s.memory.Release(sc.taken)
	sc.held, sc.heldAt, sc.taken = nil, 0, 0
}

func (s *scanners) find(id uint64) (sc *scanner, closed *closedScanner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.mu.closed[id]; ok {
		return nil, &c
	}
	return s.mu.open[id], nil
}

// close ends a scanner that the caller runs. Its id is remembered if the client may
// still ask.
func (s *scanners) close(sc *scanner, remember bool) {
	s.end(sc)
	sc.closed = true
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.open, sc.id)
	if remember && len(s.mu.closed) < 4*s.max {
		s.mu.closed[sc.id] = closedScanner{sc.nextSeq, time.Now().Add(s.lease)}
	}
}

func (s *scanners) expire(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, sc := range s.mu.open {
		if now.UnixNano() > sc.lease.Load() && sc.running.CompareAndSwap(0, 1) {
			delete(s.mu.open, id)
			s.end(sc)
		}
	}
	for id, c := range s.mu.closed {
		if now.After(c.until) {
			delete(s.mu.closed, id)
		}
	}
}

// scanRange returns the rows of a region that a scan asks for.
func scanRange(r *model.Region, s *pb.Scan) row.Range {
	start, stop := s.GetStartRow(), s.GetStopRow()
	includeStop := s.GetIncludeStopRow()
	if s.IncludeStopRow == nil && len(start) > 0 && bytes.Equal(start, stop) {
		includeStop = true // how clients before 2.0 ask for one row
	}
	var out row.Range
	if s.GetReversed() {
		out.Start = stop
		if len(stop) > 0 && !includeStop {
			out.Start = row.Successor(stop)
		}
		if out.End = start; len(start) > 0 && s.GetIncludeStartRow() {
			out.End = row.Successor(start)
		}
	} else {
		if out.Start = start; len(start) > 0 && !s.GetIncludeStartRow() {
			out.Start = row.Successor(start)
		}
		if out.End = stop; len(stop) > 0 && includeStop {
			out.End = row.Successor(stop)
		}
	}
	return out.Intersect(row.Range{Start: r.Start, End: r.End})
}

// scan answers every call of a scanner: the first, which opens it, those that
// ask for more, and the last.
func (s *Server) scan(ctx context.Context, c *Call, req *pb.ScanRequest) (*pb.ScanResponse, error) {
	if req.ScannerId == nil {
		return s.openScanner(ctx, c, req)
	}
	// asynchbase, and so OpenTSDB, takes the id from every answer: HBASE-18000.
	resp := &pb.ScanResponse{ScannerId: proto.Uint64(req.GetScannerId())}
	sc, closed := s.scanners.find(req.GetScannerId())
	if closed != nil {
		if !req.GetCloseScanner() && req.NextCallSeq != nil && req.GetNextCallSeq() != closed.nextSeq {
			return nil, outOfOrder(req.GetScannerId(), closed.nextSeq, req.GetNextCallSeq())
		}
		return resp, nil
	}
	if sc == nil {
		return nil, wire.UnknownScanner.New("Unknown scanner '%d'. This can happen due to any of the following reasons: a) Scanner id given is wrong, b) Scanner lease expired because of long wait between consecutive client checkins, c) Server may be closing down, d) RegionServer restart during upgrade.", req.GetScannerId())
	}
	if !sc.running.CompareAndSwap(0, 1) {
		return nil, wire.OutOfOrderScanner.New("scanner %d is in use by another call; the nextCallSeq got from client: %d", sc.id, req.GetNextCallSeq())
	}
	defer s.scanners.rest(sc)
	if sc.user != c.User+"\x00"+c.Certificate {
		return nil, wire.AccessDenied.New("scanner %d is another user's", sc.id)
	}
	ctx, err := s.authorize(ctx, c, Read, sc.t)
	if err != nil {
		s.scanners.close(sc, false)
		return nil, err
	}
	if req.NextCallSeq != nil {
		if req.GetNextCallSeq() != sc.nextSeq {
			return nil, outOfOrder(sc.id, sc.nextSeq, req.GetNextCallSeq())
		}
		sc.nextSeq++
	}
	if req.GetRenew() {
		return resp, nil
	}
	if err := s.current(ctx, sc); err != nil {
		s.scanners.close(sc, false)
		return nil, err
	}
	if err := s.fill(ctx, c, sc, req, resp); err != nil {
		s.scanners.close(sc, false)
		var e *wire.Exception
		if errors.As(err, &e) && e.DoNotRetry || fault.KindOf(err) == fault.PermissionDenied {
			return nil, err
		}
		// What the client had of the filter's state is gone: it has to begin anew
		// behind the last row that it has.
		if c.Versioned {
			return nil, wire.ScannerReset.New("Scanner %d is closed on the server-side: %v", sc.id, err)
		}
		return nil, wire.UnknownScanner.New("Scanner %d is closed on the server-side: %v", sc.id, err)
	}
	return resp, nil
}

func outOfOrder(id, want, got uint64) error {
	return wire.OutOfOrderScanner.New("Expected nextCallSeq: %d But the nextCallSeq got from client: %d; scanner %d", want, got, id)
}

// current tells whether the scanner's rows are still those of its table. That
// its region was split meanwhile does not matter.
func (s *Server) current(ctx context.Context, sc *scanner) error {
	if sc.t == nil {
		return nil
	}
	t, err := s.catalog.Table(ctx, sc.t.Name)
	switch {
	case err != nil && fault.KindOf(err) != fault.NotFound:
		return err
	case err != nil || t.Schema.ID != sc.t.Schema.ID || !t.Enabled():
		return wire.NotServingRegion.New("%v: the table is disabled or gone", sc.region)
	}
	return nil
}

func (s *Server) openScanner(ctx context.Context, c *Call, req *pb.ScanRequest) (*pb.ScanResponse, error) {
	ctx, region, t, err := s.region(ctx, c, req.GetRegion(), Read)
	if err != nil {
		return nil, err
	}
	if req.GetScan() == nil {
		return nil, wire.DoNotRetryIO.New("a scan request with neither a scan nor a scanner id")
	}
	sc, err := s.newScanner(ctx, c, region, t, req.GetScan())
	if err != nil {
		return nil, err
	}
	sc.user = c.User + "\x00" + c.Certificate
	if n := req.GetLimitOfRows(); n > 0 {
		sc.limit = int(min(n, math.MaxInt32))
	}
	if err := s.scanners.add(sc); err != nil {
		return nil, err
	}
	defer s.scanners.rest(sc)
	resp := &pb.ScanResponse{ScannerId: proto.Uint64(sc.id), Ttl: proto.Uint32(uint32(s.scanners.lease.Milliseconds())),
		MvccReadPoint: proto.Uint64(uint64(sc.opened))}
	if err := s.fill(ctx, c, sc, req, resp); err != nil {
		s.scanners.close(sc, false)
		return nil, err
	}
	if sc.closed {
		return resp, nil
	}
	if err := s.scanners.keep(sc, c.decoded, &c.room); err != nil {
		s.scanners.close(sc, false)
		return nil, err
	}
	return resp, nil
}

// newScanner returns a scanner that is not among the open ones.
func (s *Server) newScanner(ctx context.Context, c *Call, region *model.Region, t *model.Table, spec *pb.Scan) (*scanner, error) {
	if t != nil && raw(spec) {
		return nil, wire.DoNotRetryIO.New("raw scans are not supported, as deletions are not kept as HBase's markers; a scan that is not raw shows the versions that are there")
	}
	sc := &scanner{region: region, t: t, spec: spec, opened: time.Now().UnixMilli(), limit: -1}
	eager := spec.LoadColumnFamiliesOnDemand != nil && !spec.GetLoadColumnFamiliesOnDemand()
	var err error
	if t == nil {
		if sc.computed, err = s.computedScan(ctx, region.Table, spec); err != nil {
			return nil, err
		}
	}
	if sc.q, err = newQuery(t, sc.computed.families(), spec, eager, spec.GetReversed(), time.Now(), &c.room); err != nil {
		return nil, err
	}
	if sc.q.filter != nil && sc.q.filter.HasRow() && spec.GetBatchSize() > 0 {
		return nil, wire.Class{Name: "org.apache.hadoop.hbase.filter.IncompatibleFilterException", DoNotRetry: true}.New("Cannot set batch on a scan using a filter that returns true for filter.hasFilterRow")
	}
	if t != nil {
		sc.rest = sc.q.rows(scanRange(region, spec))
	}
	if sc.q.filter != nil && sc.q.filter.Done() {
		sc.done = true
	}
	return sc, nil
}

// raw tells whether a scan wants to see delete markers and what they hide, which
// Java clients say with an attribute.
func raw(spec *pb.Scan) bool {
	for _, a := range spec.GetAttribute() {
		if a.GetName() == "_raw_" {
			return len(a.GetValue()) == 1 && a.GetValue()[0] != 0
		}
	}
	return false
}

// maxTime is how long one call reads when the client does not say.
const maxTime = 30 * time.Second

// A page is the response of one call of a scanner as it is filled.
type page struct {
	c       *Call
	sc      *scanner
	resp    *pb.ScanResponse
	blocks  bool
	partial bool // rows may be cut
	rows    int  // results that are wanted
	max     int  // bytes
	size    int
	results int
	midRow  bool // the last result is not the end of its row
}

// add adds cells of the row at hand as one result; more tells that others of
// the row follow.
func (p *page) add(cells []filter.Cell, more bool) {
	if p.blocks {
		p.resp.CellsPerResult = append(p.resp.CellsPerResult, uint32(len(cells)))
		p.resp.PartialFlagPerResult = append(p.resp.PartialFlagPerResult, more)
		p.c.Block = appendCells(p.c.Block, cells)
	} else {
		p.resp.Results = append(p.resp.Results, &pb.Result{Cell: cellsProto(cells), Partial: proto.Bool(more), Stale: proto.Bool(false)})
	}
	p.results++
	if p.midRow = more; !more && p.sc.limit > 0 {
		p.sc.limit--
	}
}

func (p *page) full() bool { return p.results >= p.rows || p.size >= p.max || p.sc.limit == 0 }

// take adds as much of a row as the page has place for and returns how many cells
// that was.
func (p *page) take(cells []filter.Cell) (int, error) {
	batch := int(min(p.sc.spec.GetBatchSize(), math.MaxInt32))
	at := 0
	for at < len(cells) && (at == 0 && p.results == 0 || !p.full()) {
		n, before := 0, p.size
		for at+n < len(cells) && (batch == 0 || n < batch) {
			if p.partial && n > 0 && p.size >= p.max {
				break
			}
			k := &cells[at+n]
			p.size += wire.CellSize(len(k.Row), len(k.Family), len(k.Qualifier), len(k.Value))
			n++
		}
		if err := p.c.room.answered(int64(p.size - before)); err != nil {
			return at, err
		}
		p.add(cells[at:at+n], at+n < len(cells))
		at += n
	}
	return at, nil
}

// fill reads what a call asks for into a response, and closes the scanner if
// there is nothing more, or nothing more is wanted.
func (s *Server) fill(ctx context.Context, c *Call, sc *scanner, req *pb.ScanRequest, resp *pb.ScanResponse) error {
	p := &page{c: c, sc: sc, resp: resp, blocks: c.Blocks, rows: math.MaxInt32, max: s.o.MaxResultBytes}
	if req.NumberOfRows != nil {
		p.rows = int(min(req.GetNumberOfRows(), math.MaxInt32))
	} else if req.GetCloseScanner() {
		p.rows = 0
	} else {
		p.rows = 1
	}
	if n := sc.spec.GetMaxResultSize(); n > 0 && n < uint64(p.max) {
		p.max = int(n)
	}
	if p.rows > 0 {
		if err := c.reserve(ctx, s, p.max); err != nil {
			return err
		}
		if p.blocks {
			c.Block = newBuffer()
		}
	}
	p.partial = req.GetClientHandlesPartials() && (sc.q.filter == nil || !sc.q.filter.HasRow())
	heartbeat := req.GetClientHandlesPartials() && req.GetClientHandlesHeartbeats()

	patience := min(s.scanners.lease/2, maxTime)
	if c.Timeout > 0 {
		patience = min(patience, c.Timeout/2)
	}
	deadline := time.Now().Add(patience)
	var late bool
	r := newReader(sc.q, &c.room, nil)
	r.sink = func(key []byte, cells []filter.Cell) (bool, error) {
		n, err := p.take(cells)
		if err == nil && n < len(cells) {
			// The rest is for later calls, when these bytes are others'.
			err = s.scanners.hold(sc, cells[n:], &c.room)
		}
		r.ahead = r.ahead && len(sc.held) == 0 && sc.limit != 0
		return p.full() || late, err
	}
	r.pause = func() bool {
		late = (time.Now().After(deadline) || s.isStopping()) && (heartbeat || p.results > 0)
		return late
	}
	if sc.heldAt < len(sc.held) && p.rows > 0 {
		n, err := p.take(sc.held[sc.heldAt:])
		if err != nil {
			return err
		}
		if sc.heldAt += n; sc.heldAt == len(sc.held) {
			s.scanners.drop(sc)
		}
	}
	// As in HBase, the response with the last piece of a region's last row says
	// that it is the last: Java clients count rows by the pieces that they get, and
	// take an empty response for the end of another row.
	r.ahead = sc.t != nil && sc.spec.GetBatchSize() > 0
	if p.full() {
		r.looking = r.ahead
	}
	if len(sc.held) == 0 && !sc.done && p.rows > 0 && sc.limit != 0 && (!p.full() || r.looking) {
		var err error
		if sc.t == nil {
			err = sc.computed.scan(r)
		} else {
			sc.rest, err = s.read(ctx, sc.t.Resource, sc.rest, sc.spec.GetReversed(), r)
		}
		if err != nil {
			return err
		}
	}
	left := len(sc.rest) > 0
	if sc.t == nil {
		left = sc.computed.left()
	}
	finished := sc.q.filter != nil && sc.q.filter.Done()
	inRegion := len(sc.held) > 0 || left && !finished && sc.limit != 0
	resp.MoreResultsInRegion = proto.Bool(inRegion && sc.limit != 0)
	// As in HBase, a filter that is done ends the scan of the region; it ends the
	// scan only with a response that has no results. A PageFilter of n rows lets n
	// rows of each region pass until then.
	resp.MoreResults = proto.Bool(sc.limit != 0 && (len(sc.held) > 0 || !finished || p.results > 0))
	if late && inRegion && !p.full() {
		resp.HeartbeatMessage = proto.Bool(true)
		if sc.spec.GetNeedCursorResult() && len(r.at) > 0 {
			resp.Cursor = &pb.Cursor{Row: bytes.Clone(r.at)}
		}
	}
	if req.GetTrackScanMetrics() {
		resp.ScanMetrics = &pb.ScanMetrics{Metrics: []*pb.NameInt64Pair{
			{Name: proto.String("ROWS_SCANNED"), Value: proto.Int64(r.seen)},
			{Name: proto.String("ROWS_FILTERED"), Value: proto.Int64(max(r.seen-int64(p.results), 0))},
		}}
	}
	resp.Stale = proto.Bool(false)
	if !inRegion || sc.limit == 0 || req.GetCloseScanner() {
		sc.done = true
		s.scanners.close(sc, true)
	}
	return nil
}

// copyCells returns cells that share nothing with those of a reader.
func copyCells(cells []filter.Cell) []filter.Cell {
	size := len(cells[0].Row)
	for i := range cells {
		size += len(cells[i].Qualifier) + len(cells[i].Value)
	}
	arena := make([]byte, 0, size)
	keep := func(b []byte) []byte {
		n := len(arena)
		arena = append(arena, b...)
		return arena[n:len(arena):len(arena)]
	}
	out := make([]filter.Cell, len(cells))
	key := keep(cells[0].Row)
	for i := range cells {
		out[i] = cells[i]
		out[i].Row, out[i].Qualifier, out[i].Value = key, keep(cells[i].Qualifier), keep(cells[i].Value)
	}
	return out
}
