package tablet

import (
	"maps"
	"time"
)

// What the processors spend on requests, as measured with the gateway's part
// left out: see docs/decisions on hot tablets.
const (
	readSeconds    = 4e-6   // a call that reads
	rowSeconds     = 0.3e-6 // a row of a scan
	writtenSeconds = 12e-6  // a row changed
	byteSeconds    = 0.5e-9 // of values, copied and checked
)

// Busy estimates how many processors a load keeps busy.
func (l Load) Busy() float64 {
	return l.Reads*readSeconds + l.RowsRead*rowSeconds + l.RowsWritten*writtenSeconds + l.Bytes*byteSeconds
}

// Hot says since when which tablets of a server are hot.
type Hot map[*Tablet]time.Time

// hotShare is the part of the load of its server that a hot tablet takes.
const hotShare = 0.6

// Lasting returns the tablets of a server that are hot, with their rates. For
// as long as after they have taken more than rate rows a second, and most of
// what the server is asked for. It begins anew with those.
func (h Hot) Lasting(ts []*Tablet, now time.Time, rate float64, after time.Duration) map[*Tablet]float64 {
	var total float64
	rates := map[*Tablet]float64{}
	for _, t := range ts {
		rates[t] = t.Load(now).Rows()
		total += rates[t]
	}
	out := map[*Tablet]float64{}
	for t, r := range rates {
		if r < rate || r < hotShare*total {
			delete(h, t)
		} else if since, ok := h[t]; !ok {
			h[t] = now
		} else if now.Sub(since) >= after {
			delete(h, t) // whatever comes of it, look again in a while
			out[t] = r
		}
	}
	maps.DeleteFunc(h, func(t *Tablet, _ time.Time) bool { _, ok := rates[t]; return !ok })
	return out
}
