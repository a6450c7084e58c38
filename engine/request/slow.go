package request

import (
	"encoding/hex"
	"strings"
	"time"
)

// Slow describes a request that took long. It is an entry of the log of slow requests, and
// its JSON form.
type Slow struct {
	Time      time.Time `json:"time"` // of its arrival
	RequestID string    `json:"request_id"`
	Trace     string    `json:"trace_id,omitempty"`
	Face      string    `json:"face"`
	Method    string    `json:"method"`
	Table     string    `json:"table,omitempty"`
	Profile   string    `json:"app_profile,omitempty"`
	Principal string    `json:"principal,omitempty"`
	Code      string    `json:"code"`
	// Key is the first row key of the request, where keys are kept.
	Key     string  `json:"key,omitempty"`
	Seconds float64 `json:"seconds"`

	RowsSeen      int64 `json:"rows_seen"`
	RowsReturned  int64 `json:"rows_returned"`
	RowsWritten   int64 `json:"rows_written"`
	CellsSeen     int64 `json:"cells_seen"`
	CellsReturned int64 `json:"cells_returned"`
	Received      int64 `json:"received_bytes"`
	Sent          int64 `json:"sent_bytes"`
	Tablets       int64 `json:"tablets"`
	SSTables      int64 `json:"sstables"`
	// BlockBytes are the bytes of the blocks that were read, as they are in files, DiskBytes
	// those of them that were not in the block cache.
	BlockBytes int64 `json:"block_bytes"`
	DiskBytes  int64 `json:"block_disk_bytes"`

	MemoryWait     float64 `json:"memory_wait_seconds"`
	CompactionWait float64 `json:"compaction_wait_seconds"`
	LogWait        float64 `json:"log_wait_seconds"`
}

// Slow describes the request for the log of slow requests. code is how it ended, received and
// sent are the bytes of its messages.
func (r *Record) Slow(code string, start time.Time, elapsed time.Duration, received, sent int64) Slow {
	w := &r.Work
	s := Slow{
		Time: start, RequestID: IDString(r.ID()), Face: r.Face.String(), Method: r.Method[strings.LastIndexByte(r.Method, '/')+1:], Table: r.TableName, Profile: r.Profile,
		Principal: r.Principal, Code: code, Key: r.Key, Seconds: elapsed.Seconds(),
		RowsSeen: w.RowsSeen.Load(), RowsReturned: w.RowsReturned.Load(), RowsWritten: w.RowsWritten.Load(),
		CellsSeen: w.CellsSeen.Load(), CellsReturned: w.CellsReturned.Load(), Received: received, Sent: sent,
		Tablets: w.Tablets.Load(), SSTables: w.SSTables.Load(),
		BlockBytes: w.BlockBytes.Load(), DiskBytes: w.BlockBytes.Load() - w.CachedBytes.Load(),
		MemoryWait: seconds(w.MemoryWait.Load()), CompactionWait: seconds(w.CompactionWait.Load()), LogWait: seconds(w.LogWait.Load()),
	}
	if r.Span != nil {
		c := r.Span.Context()
		s.Trace = hex.EncodeToString(c.Trace[:])
	}
	return s
}

func seconds(nanos int64) float64 { return time.Duration(nanos).Seconds() }
