package ops

import (
	"context"
	"log/slog"
	"sync"
	"time"

	measured "github.com/trestledb/trestle/engine/request"
)

// slowKept is how many slow requests are kept in memory.
const slowKept = 1000

// A SlowLog keeps the last slow requests, and writes them to a log if it has one. It is safe
// for concurrent use.
type SlowLog struct {
	log *slog.Logger // may be nil

	mu    sync.Mutex
	ring  []measured.Slow
	next  int
	lines int // in the second that began at since
	since time.Time
}

// slowLines is how many lines are written in a second. The others are only kept.
const slowLines = 20

// NewSlowLog returns a SlowLog that writes to log, or nowhere if that is nil.
func NewSlowLog(log *slog.Logger) *SlowLog { return &SlowLog{log: log} }

// Add takes a request.
func (l *SlowLog) Add(s measured.Slow) {
	l.mu.Lock()
	if len(l.ring) < slowKept {
		l.ring = append(l.ring, s)
	} else {
		l.ring[l.next] = s
	}
	l.next = (l.next + 1) % slowKept
	if now := time.Now(); now.Sub(l.since) >= time.Second {
		l.since, l.lines = now, 0
	}
	l.lines++
	write := l.log != nil && l.lines <= slowLines
	l.mu.Unlock()
	if !write {
		return
	}
	attrs := []slog.Attr{
		slog.String("request_id", s.RequestID), slog.String("face", s.Face), slog.String("method", s.Method), slog.String("table", s.Table),
		slog.String("app_profile", s.Profile), slog.String("principal", s.Principal), slog.String("code", s.Code), slog.Float64("seconds", s.Seconds),
		slog.Int64("rows_seen", s.RowsSeen), slog.Int64("rows_returned", s.RowsReturned), slog.Int64("rows_written", s.RowsWritten),
		slog.Int64("cells_seen", s.CellsSeen), slog.Int64("cells_returned", s.CellsReturned),
		slog.Int64("received_bytes", s.Received), slog.Int64("sent_bytes", s.Sent), slog.Int64("tablets", s.Tablets), slog.Int64("sstables", s.SSTables),
		slog.Int64("block_bytes", s.BlockBytes), slog.Int64("block_disk_bytes", s.DiskBytes),
		slog.Float64("memory_wait_seconds", s.MemoryWait), slog.Float64("compaction_wait_seconds", s.CompactionWait), slog.Float64("log_wait_seconds", s.LogWait),
	}
	if s.Trace != "" {
		attrs = append(attrs, slog.String("trace_id", s.Trace))
	}
	if s.Key != "" {
		attrs = append(attrs, slog.String("key", s.Key))
	}
	l.log.LogAttrs(context.Background(), slog.LevelWarn, "slow request", attrs...)
}

// list returns the requests that are kept, the latest first.
func (l *SlowLog) list() []measured.Slow {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]measured.Slow, 0, len(l.ring))
	for i := range l.ring {
		out = append(out, l.ring[(l.next-1-i+2*slowKept)%slowKept])
	}
	return out
}

// listSlow is /admin/slow. A caller sees the requests of the tables that it may see.
func (a *Admin) listSlow(q *request) (any, error) {
	l := a.slow.Load()
	out := struct {
		Requests []measured.Slow `json:"requests"`
	}{[]measured.Slow{}}
	if l == nil {
		return out, nil
	}
	may := map[string]bool{}
	for _, s := range l.list() {
		ok, asked := may[s.Table]
		if !asked {
			var err error
			if ok, err = q.sees(s.Table); err != nil {
				return nil, err
			}
			may[s.Table] = ok
		}
		if ok {
			out.Requests = append(out.Requests, s)
		}
	}
	return out, nil
}
