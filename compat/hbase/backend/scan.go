package backend

import (
	"bytes"
	"context"
	"time"

	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/hrpc"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

const (
	// resultBytes is how much a region server is asked to answer at a time. A
	// scan holds one answer; a longer row comes in several.
	resultBytes = 2 << 20
	// scanRetries is how often a scan is begun anew without having moved on.
	scanRetries = 12
)

// A scanner reads a range of rows of a table, region after region.
type scanner struct {
	b      *Backend
	client gohbase.RPCClient
	table  []byte
	// template says which cells; its rows are set for each region.
	template *pb.Scan
	reversed bool
	// rows is how many rows are read in all; 0 is all of them.
	rows int64
}

// A piece is a part of a row: some of its cells, of which none comes again.
type piece struct {
	row   []byte
	cells []wire.Cell
}

// A taker takes what a scanner finds. stop ends the scan without an error.
type taker interface {
	// piece begins a row, or goes on with the row before.
	piece(p *piece) (stop bool, err error)
	// end tells that the row that was begun has no more cells.
	end() (stop bool, err error)
}

// bounds is what is left of a scan.
type bounds struct {
	from      []byte // the first row, in the direction of the scan; empty is the edge of the table
	inclusive bool
	to        []byte // where it stops; a forward scan before it, a reversed one at it
}

// run scans r.
func (s *scanner) run(ctx context.Context, r row.Range, to taker) error {
	left := bounds{r.Start, true, r.End}
	if s.reversed {
		left = bounds{r.End, len(r.End) == 0, r.Start}
	}
	rows := s.rows
	pause := 10 * time.Millisecond
	for failures := 0; ; {
		before := len(left.from)
		was := left
		more, err := s.region(ctx, &left, &rows, to)
		if err == nil {
			if !more {
				return nil
			}
			failures = 0
			continue
		}
		if !is(err, "UnknownScannerException", "ScannerResetException", "OutOfOrderScannerNextException", "LeaseException",
			"NotServingRegionException", "RegionMovedException", "WrongRegionException", "RegionServerStoppedException") {
			return err
		}
		// The region is elsewhere now, or the client was slow and the scanner's
		// lease is over. Go on behind the last row.
		if before != len(left.from) || !bytes.Equal(was.from, left.from) {
			failures = 0
		}
		if failures++; failures > scanRetries {
			return fault.New(fault.Unavailable, "scan of HBase's table %s: %w", s.table, err)
		}
		if err := sleep(ctx, pause*time.Duration(failures)); err != nil {
			return err
		}
	}
}

// open opens a scanner in the region in which left begins.
func (s *scanner) open(ctx context.Context, left *bounds, rows int64) (*pb.ScanResponse, *call, error) {
	scan := proto.Clone(s.template).(*pb.Scan)
	scan.StartRow, scan.StopRow = left.from, left.to
	scan.IncludeStartRow = proto.Bool(left.inclusive)
	scan.IncludeStopRow = proto.Bool(s.reversed)
	if r := (row.Range{Start: left.from, End: left.to}); !s.reversed && left.inclusive && r.IsSingle() {
		// This is how HBase knows a scan that it may treat as a Get.
		scan.StopRow, scan.IncludeStopRow = left.from, proto.Bool(true)
	}
	scan.MaxResultSize = proto.Uint64(resultBytes)
	// A scan ends at the last region with the row, which may be short of it.
	if s.reversed {
		scan.Reversed = proto.Bool(true)
	}
	key := left.from
	if s.reversed {
		key = before(left.from)
	}
	for range 100 {
		c := &call{name: "Scan", table: s.table, key: key,
			request: func(r hrpc.RegionInfo) proto.Message {
				req := &pb.ScanRequest{Region: specifier(r), Scan: scan, NumberOfRows: proto.Uint32(batch(rows)),
					ClientHandlesPartials: proto.Bool(true), ClientHandlesHeartbeats: proto.Bool(true)}
				if rows > 0 {
					req.LimitOfRows = proto.Uint32(uint32(min(rows, 1<<31-1)))
				}
				return req
			},
			answer: func() proto.Message { return new(pb.ScanResponse) }}
		resp, err := send[*pb.ScanResponse](ctx, s.client, s.b.o.Timeout, c)
		if err != nil || !s.reversed {
			return resp, c, err
		}
		// key was a guess at the row before left.from. If another region lies
		// between, the scan begins there.
		stop := c.region.StopKey()
		if len(stop) == 0 || len(left.from) > 0 && bytes.Compare(stop, left.from) >= 0 {
			return resp, c, nil
		}
		s.close(resp, c)
		key = stop
	}
	return nil, nil, fault.New(fault.Unavailable, "HBase's table %s: no region ends at %q", s.table, left.from)
}

// batch is how many rows are asked for at a time.
func batch(rows int64) uint32 {
	if rows == 0 {
		return 1<<31 - 1
	}
	return uint32(min(rows, 1<<31-1))
}

// before returns a key that is smaller than key, and close to it. Empty stands
// for the end of the table.
func before(key []byte) []byte {
	high := bytes.Repeat([]byte{0xFF}, 8)
	if len(key) == 0 {
		return bytes.Repeat(high, 4)
	}
	k := bytes.Clone(key)
	if k[len(k)-1] == 0 {
		return k[:len(k)-1]
	}
	k[len(k)-1]--
	return append(k, high...)
}

// region scans what is left in one region. left is moved on with every row that
// is complete. more tells that another region has to be scanned.
func (s *scanner) region(ctx context.Context, left *bounds, rows *int64, to taker) (more bool, err error) {
	resp, c, err := s.open(ctx, left, *rows)
	if err != nil {
		return false, err
	}
	region := c.region
	opened := resp
	done := false // the server has closed the scanner itself
	defer func() {
		if !done {
			s.close(opened, c)
		}
	}()
	var open []byte // the row that was begun and not ended
	inRow := false
	lost := func(err error) error {
		if inRow && ctx.Err() == nil {
			// What came of the row is of an instant that is over.
			return fault.New(fault.Unavailable, "row %q was lost while it was read: %v", open, err)
		}
		return err
	}
	end := func() (bool, error) {
		inRow = false
		left.from, left.inclusive = open, false
		if *rows > 0 {
			*rows--
		}
		return to.end()
	}
	for seq := uint64(0); ; seq++ {
		block := wire.NewCells(c.block)
		count := len(resp.GetCellsPerResult())
		results := resp.GetResults()
		if count == 0 {
			count = len(results)
		}
		for i := range count {
			p, err := nextResult(&block, resp, i)
			if err != nil {
				return false, lost(err)
			}
			if len(p.cells) == 0 {
				continue
			}
			if inRow && !bytes.Equal(open, p.row) {
				if stop, err := end(); stop || err != nil {
					return false, err
				}
			}
			if !inRow {
				open, inRow = bytes.Clone(p.row), true
			}
			if err := ctx.Err(); err != nil {
				return false, err
			}
			if stop, err := to.piece(p); stop || err != nil {
				return false, err
			}
			partial := false
			if flags := resp.GetPartialFlagPerResult(); i < len(flags) {
				partial = flags[i]
			} else if i < len(results) {
				partial = results[i].GetPartial()
			}
			if !partial {
				if stop, err := end(); stop || err != nil {
					return false, err
				}
			}
		}
		if resp.MoreResults != nil && !resp.GetMoreResults() || !resp.GetMoreResultsInRegion() {
			done = true // the server has closed the scanner
			if inRow {
				if stop, err := end(); stop || err != nil {
					return false, err
				}
			}
			if resp.MoreResults != nil && !resp.GetMoreResults() || s.rows > 0 && *rows == 0 {
				return false, nil
			}
			break
		}
		id := opened.GetScannerId()
		ask := *rows
		c = &call{name: "Scan", table: s.table, key: region.StartKey(),
			request: func(r hrpc.RegionInfo) proto.Message {
				req := &pb.ScanRequest{Region: specifier(r), ScannerId: proto.Uint64(id), NumberOfRows: proto.Uint32(batch(ask)), NextCallSeq: proto.Uint64(seq),
					ClientHandlesPartials: proto.Bool(true), ClientHandlesHeartbeats: proto.Bool(true)}
				if ask > 0 {
					req.LimitOfRows = proto.Uint32(uint32(min(ask, 1<<31-1)))
				}
				return req
			},
			answer: func() proto.Message { return new(pb.ScanResponse) }}
		if resp, err = send[*pb.ScanResponse](ctx, s.client, s.b.o.Timeout, c); err != nil {
			done = is(err, "UnknownScannerException", "ScannerResetException")
			return false, lost(err)
		}
	}
	if s.reversed {
		edge := region.StartKey()
		if len(edge) == 0 || bytes.Compare(edge, left.to) <= 0 {
			return false, nil
		}
		left.from, left.inclusive = edge, false
		return true, nil
	}
	edge := region.StopKey()
	if len(edge) == 0 || len(left.to) > 0 && bytes.Compare(edge, left.to) >= 0 {
		return false, nil
	}
	left.from, left.inclusive = edge, true
	return true, nil
}

// nextResult reads result i of an answer, from its cell block or the message.
func nextResult(block *wire.Cells, resp *pb.ScanResponse, i int) (*piece, error) {
	p := &piece{}
	if i < len(resp.GetCellsPerResult()) {
		n := int(resp.GetCellsPerResult()[i])
		if n > block.Len()/12 {
			return nil, fault.New(fault.Corruption, "HBase answered %d cells in %d bytes", n, block.Len())
		}
		p.cells = make([]wire.Cell, n)
		for j := range p.cells {
			if err := block.Next(&p.cells[j]); err != nil {
				return nil, fault.New(fault.Corruption, "HBase answered a %v", err)
			}
		}
	} else {
		p.cells = fromMessage(resp.GetResults()[i])
	}
	if len(p.cells) > 0 {
		p.row = p.cells[0].Row
	}
	for j := range p.cells {
		if !bytes.Equal(p.cells[j].Row, p.row) {
			return nil, fault.New(fault.Corruption, "HBase answered cells of %q in row %q", p.cells[j].Row, p.row)
		}
	}
	return p, nil
}

func fromMessage(r *pb.Result) []wire.Cell {
	out := make([]wire.Cell, len(r.GetCell()))
	for i, c := range r.GetCell() {
		out[i] = wire.Cell{Row: c.GetRow(), Family: c.GetFamily(), Qualifier: c.GetQualifier(), Timestamp: int64(c.GetTimestamp()),
			Type: byte(c.GetCellType()), Value: c.GetValue()}
	}
	return out
}

// close lets the region server forget a scanner, without waiting for it.
func (s *scanner) close(opened *pb.ScanResponse, c *call) {
	if opened.ScannerId == nil {
		return
	}
	id, key := opened.GetScannerId(), c.region.StartKey()
	s.b.background.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		// If it fails, the lease ends by itself.
		_, _ = send[*pb.ScanResponse](ctx, s.client, s.b.o.Timeout, &call{name: "Scan", table: s.table, key: key,
			request: func(r hrpc.RegionInfo) proto.Message {
				return &pb.ScanRequest{Region: specifier(r), ScannerId: proto.Uint64(id), CloseScanner: proto.Bool(true), NumberOfRows: proto.Uint32(0)}
			},
			answer: func() proto.Message { return new(pb.ScanResponse) }})
	})
}
