package keyvis

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/trestledb/trestle/engine/tablet"
)

// A Finding is a sentence about a heat map.
type Finding struct {
	Kind     Kind
	Severity string // "warning" or "info"
	Text     string
	// Key is the row that it is about, or the first of the rows.
	Key      []byte
	From, To time.Time
}

// A Kind of finding.
type Kind string

// The kinds of findings.
const (
	HotRow     Kind = "hot_row"
	HotRange   Kind = "hot_range"
	HotTablet  Kind = "hot_tablet"
	Sequential Kind = "sequential"
	Even       Kind = "even"
	// LargeRow is of one with tablet.LargeRowBytes or more.
	LargeRow Kind = "large_row"
)

const (
	// leastBusy is the part of a processor from which on something is to be said of a
	// table.
	leastBusy   = 0.0005
	rowShare    = 0.5 // of the load of a table, on one row
	rangeShare  = 0.8 // of the load, on a range that has few of the bytes
	fewBytes    = 0.4
	endShare    = 0.8 // of the rows written, behind all that were written before
	tabletShare = 0.6 // of the load of a table: as tablet.Hot has it of a server
	maxFindings = 20
)

// seen is what one column shows.
type seen struct {
	kind  Kind
	key   []byte
	end   []byte  // of a range
	share float64 // of the load
	bytes float64 // share of the bytes
	rate  float64 // rows per second
	oneOf bool    // of HotTablet: most of it is one row
}

// findings tells what the columns of a table show, oldest first. What several columns
// in a row show is one finding.
func findings(cs []*column, table string, splitRate float64) []Finding {
	type run struct {
		seen
		n        float64
		from, to time.Time
	}
	var runs []*run
	var written []byte // behind the last row that was written
	for _, c := range cs {
		l := c.bucketsOf(table)
		var found []seen
		found, written = look(l, c.step, written, splitRate)
		for _, s := range found {
			var r *run
			for _, x := range runs {
				// A large row stays one while nothing is recorded.
				if x.kind == s.kind && (x.to.Equal(c.start) || s.kind == LargeRow) && (s.kind != HotRow && s.kind != LargeRow || bytes.Equal(x.key, s.key)) {
					r = x
				}
			}
			if r == nil {
				r = &run{from: c.start}
				runs = append(runs, r)
			}
			mean := func(now, before float64) float64 { return (now + before*r.n) / (r.n + 1) }
			s.share, s.bytes, s.rate = mean(s.share, r.share), mean(s.bytes, r.bytes), mean(s.rate, r.rate)
			r.seen, r.to = s, c.start.Add(c.step)
			r.n++
		}
	}
	out := []Finding{}
	for _, r := range runs {
		if r.kind == HotTablet && r.n < 2 {
			continue // it is split soon
		}
		out = append(out, Finding{Kind: r.kind, Severity: severityOf(r.kind), Text: r.text(splitRate), Key: r.key, From: r.from, To: r.to})
	}
	slices.SortStableFunc(out, func(a, b Finding) int {
		return cmp.Or(-cmp.Compare(a.Severity, b.Severity), b.To.Compare(a.To), b.From.Compare(a.From))
	})
	return out[:min(len(out), maxFindings)]
}

func severityOf(k Kind) string {
	if k == Even {
		return "info"
	}
	return "warning"
}

// look tells what one column shows. written is behind the last row that was written in
// earlier ones; it returns that of this one.
func look(l []Bucket, step time.Duration, written []byte, splitRate float64) (out []seen, end []byte) {
	var total Values
	for i := range l {
		total.add(&l[i].Values)
	}
	end = written
	var behind int64
	first := []byte(nil)
	for i := range l {
		b := &l[i]
		if b.Values[RowsWritten] == 0 {
			continue
		}
		if written != nil && bytes.Compare(b.Start, written) >= 0 {
			if behind += b.Values[RowsWritten]; first == nil {
				first = b.Start
			}
		}
		if last := b.End; len(last) == 0 || bytes.Compare(last, end) > 0 {
			if end = last; len(last) == 0 {
				end = append(bytes.Clone(b.Start), 0) // as far as is known
			}
		}
	}
	var large []seen
	for i := range l {
		if l[i].Large {
			large = append(large, seen{kind: LargeRow, key: l[i].Start})
		}
	}
	defer func() { out = append(out, large...) }()
	if float64(total[CPU])/1e6 < leastBusy*step.Seconds() {
		return nil, end
	}
	part := func(b *Bucket) float64 { return float64(b.Values[CPU]) / float64(total[CPU]) }
	rows := func(v *Values) float64 { return float64(v[RowsRead]+v[RowsWritten]) / step.Seconds() }
	hot := -1
	for i := range l {
		if isRow(l[i].Start, l[i].End) && part(&l[i]) >= rowShare {
			hot = i
			out = append(out, seen{kind: HotRow, key: l[i].Start, share: part(&l[i]), rate: rows(&l[i].Values)})
		}
	}
	if t := float64(total[RowsWritten]); hot < 0 && t > 0 && float64(behind) >= endShare*t {
		out = append(out, seen{kind: Sequential, key: first, share: float64(behind) / t, rate: t / step.Seconds()})
	} else if hot < 0 {
		if r, ok := hotRange(l, &total); ok {
			r.rate = r.share * rows(&total)
			out = append(out, r)
		}
	}
	if len(out) == 0 {
		out = append(out, seen{kind: Even, share: 1, rate: rows(&total)})
	}
	for i := 0; i < len(l); {
		var v Values
		from := i
		for i == from || i < len(l) && !l[i].Tablet {
			v.add(&l[i].Values)
			i++
		}
		if s := float64(v[CPU]) / float64(total[CPU]); s >= tabletShare && splitRate > 0 && rows(&v) >= splitRate {
			out = append(out, seen{kind: HotTablet, key: l[from].Start, share: s, rate: rows(&v), oneOf: hot >= from && hot < i})
		}
	}
	return out, end
}

// hotRange returns the shortest run of buckets with rangeShare of the load, if it has few
// of the bytes.
func hotRange(l []Bucket, total *Values) (seen, bool) {
	if total[Stored] == 0 {
		return seen{}, false
	}
	best := seen{kind: HotRange, bytes: 2}
	var load, stored int64
	from := 0
	for i := range l {
		load += l[i].Values[CPU]
		stored += l[i].Values[Stored]
		for float64(load-l[from].Values[CPU]) >= rangeShare*float64(total[CPU]) {
			load -= l[from].Values[CPU]
			stored -= l[from].Values[Stored]
			from++
		}
		if s := float64(load) / float64(total[CPU]); s >= rangeShare {
			if part := float64(stored) / float64(total[Stored]); part < best.bytes {
				best.key, best.end, best.share, best.bytes = l[from].Start, l[i].End, s, part
			}
		}
	}
	return best, best.bytes <= fewBytes
}

// text is the sentence.
func (s *seen) text(splitRate float64) string {
	percent := func(part float64) string { return fmt.Sprintf("%.0f %%", 100*part) }
	switch s.kind {
	case HotRow:
		return fmt.Sprintf("One row takes %s of the load, %.0f rows a second. A row cannot be split: spread what it holds over several rows.", percent(s.share), s.rate)
	case LargeRow:
		return fmt.Sprintf("One row has %d MiB or more before compression. A row cannot be split, and reads of it take memory: delete what is old, or spread what it holds over several rows.", tablet.LargeRowBytes>>20)
	case Sequential:
		return fmt.Sprintf("Writes always hit the end of the table: %s of %.0f rows a second come behind all earlier ones. "+
			"One tablet takes them, however often it is split: begin keys with something that does not grow.", percent(s.share), s.rate)
	case HotRange:
		return fmt.Sprintf("A range with %s of the bytes takes %s of the load, %.0f rows a second.", percent(s.bytes), percent(s.share), s.rate)
	case HotTablet:
		why := "no row of it divides its load into two parts of a quarter or more"
		if s.oneOf {
			why = "most of its load is on one row"
		}
		return fmt.Sprintf("A tablet takes %s of the load, %.0f rows a second. From %.0f on it would be split, but %s.", percent(s.share), s.rate, splitRate, why)
	}
	return fmt.Sprintf("The load, %.0f rows a second, is spread over the table: no row or range takes most of it.", s.rate)
}
