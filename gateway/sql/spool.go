package sql

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"sync"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query"
)

// maxSpools bounds the queries that are kept for clients that are gone.
const maxSpools = 256

// takeoverWait is how long a stream that goes on with a spool waits for the one
// before it, which may not have noticed that its client is gone.
const takeoverWait = 5 * time.Second

// A spool is a query with what was sent of its result behind its first token.
// The file is a sequence of batches, each with its length and checksum before
// it. Offsets in it are what resume tokens have.
type spool struct {
	id        string
	execution hash
	now       time.Time

	// turn is held by the stream that uses the spool. What follows is its own.
	turn chan struct{}
	run  context.Context
	stop context.CancelFunc
	rows query.Rows // nil at the end
	file *os.File
	size int64
	// pending are rows that are not in the file yet.
	pending []byte
	gone    bool // closed

	mu     sync.Mutex
	cancel context.CancelFunc // of the stream that has the turn
	timer  *time.Timer        // drops it if no stream has
}

// spools are those of a Service.
type spools struct {
	limit int64

	mu     sync.Mutex
	byID   map[string]*spool
	bytes  int64
	closed bool
}

// errNoRoom refuses a result that is too long to be kept.
func errNoRoom(limit int64) error {
	return fault.New(fault.Exhausted, "The results that are kept for clients that may ask again take more than %d bytes of temporary files", limit)
}

// add makes a spool of a query that is under way, in the context run. It has the turn.
func (s *spools) add(run context.Context, o *Service, execution hash, now time.Time, rows query.Rows, stop context.CancelFunc) (*spool, error) {
	f, err := os.CreateTemp(o.o.Dir, "trestle-result-*")
	if err != nil {
		return nil, fault.New(fault.Internal, "make a temporary file: %w", err)
	}
	// It vanishes with the process; where an open file cannot be removed, when the
	// spool does.
	_ = os.Remove(f.Name())
	id := make([]byte, 16)
	rand.Read(id)
	sp := &spool{id: string(id), execution: execution, now: now, turn: make(chan struct{}, 1), run: run, stop: stop, rows: rows, file: f}
	sp.turn <- struct{}{}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.byID) >= maxSpools {
		_ = f.Close()
		_ = os.Remove(f.Name())
		return nil, fault.New(fault.Exhausted, "Too many long results are kept for clients that may ask again")
	}
	if s.byID == nil {
		s.byID = map[string]*spool{}
	}
	s.byID[sp.id] = sp
	return sp, nil
}

// take returns a spool with its turn, or nil if it is gone. A stream that has the turn
// is ended. Without the turn the spool is kept for hold from then on.
func (s *spools) take(ctx context.Context, id string, execution hash, hold time.Duration) (*spool, error) {
	s.mu.Lock()
	sp := s.byID[id]
	s.mu.Unlock()
	if sp == nil || sp.execution != execution {
		return nil, nil
	}
	sp.mu.Lock()
	if sp.timer != nil {
		sp.timer.Stop()
		sp.timer = nil
	}
	if sp.cancel != nil {
		sp.cancel()
	}
	sp.mu.Unlock()
	wait := time.NewTimer(takeoverWait)
	defer wait.Stop()
	select {
	case sp.turn <- struct{}{}:
	case <-wait.C:
		s.keep(sp, hold)
		return nil, fault.New(fault.Unavailable, "Another stream still reads this result")
	case <-ctx.Done():
		s.keep(sp, hold)
		return nil, ctx.Err()
	}
	if sp.gone {
		<-sp.turn
		return nil, nil
	}
	return sp, nil
}

// leave gives the turn back. The spool is kept for a while, unless keep is false.
func (s *spools) leave(sp *spool, keep bool, hold time.Duration) {
	if !keep {
		s.drop(sp)
	} else {
		sp.mu.Lock()
		sp.cancel = nil
		sp.mu.Unlock()
		s.keep(sp, hold)
	}
	<-sp.turn
}

// keep drops a spool after a while, unless a stream has the turn then: that one calls
// keep when it leaves.
func (s *spools) keep(sp *spool, hold time.Duration) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.timer != nil {
		sp.timer.Stop()
	}
	sp.timer = time.AfterFunc(hold, func() {
		select {
		case sp.turn <- struct{}{}:
			s.drop(sp)
			<-sp.turn
		default: // a stream goes on with it
		}
	})
}

// drop removes a spool whose turn the caller has.
func (s *spools) drop(sp *spool) {
	s.mu.Lock()
	delete(s.byID, sp.id)
	s.bytes -= sp.size
	s.mu.Unlock()
	if sp.gone {
		return
	}
	sp.gone, sp.size = true, 0
	if sp.rows != nil {
		_ = sp.rows.Close()
	}
	sp.stop()
	_ = sp.file.Close()
	_ = os.Remove(sp.file.Name())
}

// close drops all spools. No stream uses one any more.
func (s *spools) close() {
	s.mu.Lock()
	s.closed = true
	var all []*spool
	for _, sp := range s.byID {
		all = append(all, sp)
	}
	s.mu.Unlock()
	for _, sp := range all {
		sp.turn <- struct{}{}
		sp.mu.Lock()
		if sp.timer != nil {
			sp.timer.Stop()
		}
		sp.mu.Unlock()
		s.drop(sp)
		<-sp.turn
	}
}

// append writes what is pending as a batch.
func (s *spools) append(sp *spool) error {
	if len(sp.pending) == 0 {
		return nil
	}
	sum := crc32.Checksum(sp.pending, castagnoli)
	if sum == 0 {
		sp.pending = append(sp.pending, pad...)
		sum = crc32.Checksum(sp.pending, castagnoli)
	}
	n := int64(len(sp.pending) + 8)
	s.mu.Lock()
	if s.bytes+n > s.limit {
		s.mu.Unlock()
		return errNoRoom(s.limit)
	}
	s.bytes += n
	s.mu.Unlock()
	var head [8]byte
	binary.LittleEndian.PutUint32(head[:], uint32(len(sp.pending)))
	binary.LittleEndian.PutUint32(head[4:], sum)
	_, err := sp.file.WriteAt(head[:], sp.size)
	if err == nil {
		_, err = sp.file.WriteAt(sp.pending, sp.size+8)
	}
	sp.size += n
	if sp.pending = sp.pending[:0]; cap(sp.pending) > 2*maxBatch {
		sp.pending = nil // of one large row
	}
	if err != nil {
		return fault.New(fault.Internal, "write a temporary file: %w", err)
	}
	return nil
}

// read returns the batch at an offset, and the offset behind it.
func (sp *spool) read(offset int64) (batch []byte, sum uint32, next int64, err error) {
	var head [8]byte
	if _, err = sp.file.ReadAt(head[:], offset); err == nil {
		n := int64(binary.LittleEndian.Uint32(head[:]))
		sum = binary.LittleEndian.Uint32(head[4:])
		if next = offset + 8 + n; next <= sp.size {
			batch = make([]byte, n)
			if _, err = sp.file.ReadAt(batch, offset+8); err == nil && crc32.Checksum(batch, castagnoli) == sum {
				return batch, sum, next, nil
			}
		}
	}
	return nil, 0, 0, fault.New(fault.Corruption, "a temporary file does not have what was written: %v", err)
}

// respool goes on with a spool that another stream began.
func (e *execution) respool(ctx context.Context) error {
	sp, err := e.s.spools.take(ctx, string(e.from.spool), e.id, e.s.o.HoldFor)
	if err != nil {
		return err
	}
	if sp == nil {
		return noLonger()
	}
	if e.from.offset > sp.size {
		e.s.spools.leave(sp, true, e.s.o.HoldFor)
		return fault.InvalidField("resume_token", "Error in field 'resume_token' : It is behind what was sent")
	}
	return e.spooled(ctx, sp, e.from.offset, false)
}

// spooled sends what a spool has from offset on, then the rest of its query. first
// says that the client has no token yet: then the execution's batch, which is not
// in the spool, goes before all.
func (e *execution) spooled(ctx context.Context, sp *spool, offset int64, first bool) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sp.mu.Lock()
	sp.cancel = cancel
	sp.mu.Unlock()
	keep := true // another stream can go on with it
	defer func() { e.s.spools.leave(sp, keep, e.s.o.HoldFor) }()
	token := func(offset int64) ([]byte, error) {
		return e.s.token(ctx, &resume{execution: e.id, now: sp.now, stage: stageSpool, spool: []byte(sp.id), offset: offset})
	}
	if first {
		sum, err := e.w.checksum()
		if err == nil {
			var t []byte
			if t, err = token(0); err == nil {
				err = e.w.flush(sum, t)
			}
		}
		if err != nil {
			keep = false // the client has nothing to ask with
			return err
		}
	}
	if err := e.w.take(2 * maxBatch); err != nil {
		return err
	}
	for {
		for offset < sp.size {
			batch, sum, next, err := sp.read(offset)
			if err != nil {
				keep = false
				return err
			}
			t, err := token(next)
			if err == nil {
				err = e.w.message(batch, nil, sum, t)
			}
			if err != nil {
				return err
			}
			offset = next
		}
		if sp.rows == nil {
			return e.end(ctx)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := e.s.spools.pull(sp); err != nil {
			keep = false
			return e.failed(ctx, err)
		}
	}
}

// pull adds the next rows of a spool's query to the spool: whole batches to its
// file, the rest to what is pending.
func (s *spools) pull(sp *spool) error {
	b, err := sp.rows.Next(sp.run)
	if errors.Is(err, io.EOF) {
		_ = sp.rows.Close()
		sp.rows = nil
		return s.append(sp)
	}
	if err != nil {
		return err
	}
	for from := range b.Rows() {
		i := from
		if b.Sel != nil {
			i = int(b.Sel[from])
		}
		sp.pending = appendRow(sp.pending, b.Cols, i)
		if len(sp.pending) >= maxBatch {
			if err := s.append(sp); err != nil {
				return err
			}
		}
	}
	return nil
}
