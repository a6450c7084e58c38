package backendtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
	"github.com/trestledb/trestle/gateway/backend"
)

// streamed makes a table with a change stream, of two tablets. The test is skipped if
// the Backend does not keep changes.
func (s *suite) streamed(families ...string) (backend.ChangeStreamer, *schema.Table) {
	s.Helper()
	c, ok := s.Backend.(backend.ChangeStreamer)
	if !ok {
		s.Skip("not a ChangeStreamer")
	}
	t := newTable("t", 1000, families...)
	t.Stream = &schema.Stream{Life: 1, Retention: 24 * time.Hour, Since: time.Now().Truncate(time.Microsecond)}
	t, err := s.CreateTable(s.ctx, t, [][]byte{[]byte("m")})
	s.ok(err)
	return c, t
}

// A changeLog writes down the changes of a range, as a client that goes on with the new
// partitions when tablets are split or merged. stop, if set, ends the reads with errStop
// once it says so.
type changeLog struct {
	s        *suite
	families map[cell.FamilyID]string
	stop     func(*changeLog) bool

	mu     sync.Mutex
	got    []string
	stamps map[string]cell.Seq // by row
	parts  []*changePart       // of which the range consists
	err    error               // the first of a read
}

// A changePart is rows of a partition, and how far they have been read. It is the
// changes.Writer of their read.
type changePart struct {
	log       *changeLog
	partition *row.Range // nil: the rows
	rows      row.Range
	at        changes.Position
	watermark cell.Seq
}

var errStop = errors.New("stopped")

// changeLog returns one that has read nothing.
func (s *suite) changeLog(t *schema.Table, rows row.Range, stop func(*changeLog) bool) *changeLog {
	l := &changeLog{s: s, families: map[cell.FamilyID]string{}, stamps: map[string]cell.Seq{}, stop: stop}
	for n, f := range t.Families {
		l.families[f.ID] = n
	}
	l.parts = []*changePart{{log: l, rows: rows, at: since(t)}}
	return l
}

// read reads all parts from where they are. What req says of a range and a position does not
// count. The error is the first that any read ends with.
func (l *changeLog) read(ctx context.Context, c backend.ChangeStreamer, req changes.Request) error {
	l.s.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var reading sync.WaitGroup
	var begin func(p *changePart)
	begin = func(p *changePart) {
		req := req
		req.Within, req.Partition, req.From = p.rows, p.partition, p.at
		reading.Go(func() {
			closed, err := c.ReadChanges(ctx, &req, p)
			if err == nil && closed == nil && req.Until == 0 {
				err = errors.New("the read ends though it has no end")
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			switch {
			case err != nil:
				if l.err == nil {
					l.err = err
				}
				cancel()
			case closed != nil:
				for _, child := range p.closedLocked(closed) {
					begin(child)
				}
			}
		})
	}
	l.err = nil
	for _, p := range slices.Clone(l.parts) {
		begin(p)
	}
	reading.Wait()
	return l.err
}

// closedLocked puts those that it returns in the place of a part whose partition is no more.
func (p *changePart) closedLocked(c *changes.Close) (children []*changePart) {
	of := p.rows
	if p.partition != nil {
		of = *p.partition
	}
	p.movedLocked(c.At)
	p.log.s.tile(of, c.Partitions)
	if len(c.Partitions) == 1 && sameRange(c.Partitions[0], of) {
		p.log.s.Errorf("partition %q is closed in favour of itself", of)
		return nil
	}
	for _, r := range c.Partitions {
		if rows := r.Intersect(p.rows); !rows.Empty() {
			children = append(children, &changePart{log: p.log, partition: &r, rows: rows, at: p.at, watermark: p.watermark})
		}
	}
	i := slices.Index(p.log.parts, p)
	p.log.parts = slices.Replace(p.log.parts, i, i+1, children...)
	return children
}

func sameRange(a, b row.Range) bool {
	return bytes.Equal(a.Start, b.Start) && bytes.Equal(a.End, b.End)
}

// tile expects partitions that cover a range without gaps, the first and the last of which
// may reach beyond it.
func (s *suite) tile(of row.Range, parts []row.Range) {
	s.Helper()
	at := of.Start
	for i, r := range parts {
		rows := r.Intersect(of)
		if rows.Empty() || !bytes.Equal(rows.Start, at) || i > 0 && !bytes.Equal(r.Start, at) || i < len(parts)-1 && len(r.End) == 0 {
			s.Errorf("partitions %q do not tile %q", parts, of)
			return
		}
		at = rows.End
	}
	if len(parts) == 0 || !bytes.Equal(at, of.End) {
		s.Errorf("partitions %q do not tile %q", parts, of)
	}
}

// Record implements changes.Writer.
func (p *changePart) Record(r *changes.Record, at changes.Position) (bool, error) {
	l := p.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return false, l.err
	}
	switch {
	case !p.rows.Contains(r.Key):
		l.s.Errorf("row %q is not one of %q", r.Key, p.rows)
	case r.Stamp <= p.watermark:
		l.s.Errorf("row %q: stamp %d after watermark %d", r.Key, r.Stamp, p.watermark)
	case r.Stamp <= l.stamps[string(r.Key)]:
		l.s.Errorf("row %q: stamp %d after %d", r.Key, r.Stamp, l.stamps[string(r.Key)])
	case at.Through < p.watermark:
		l.s.Errorf("position %d is before watermark %d", at.Through, p.watermark)
	}
	l.stamps[string(r.Key)] = r.Stamp
	text := string(r.Key)
	for _, c := range r.Changes {
		text += " " + []string{"?", "set", "column", "family", "row", "add", "merge"}[c.Op]
		if c.Op != changes.DeleteRow {
			text += " " + l.families[c.Family]
		}
		switch c.Op {
		case changes.SetCell:
			text += fmt.Sprintf(":%s@%d=%s", c.Qualifier, c.Timestamp, c.Value)
		case changes.DeleteColumn:
			t := c.Times
			if t.Start < 0 {
				t.Start = 0
			}
			if t.End == cell.AllTime.End {
				t.End = 0
			}
			text += fmt.Sprintf(":%s[%d,%d)", c.Qualifier, t.Start, t.End)
		case changes.AddToCell, changes.MergeToCell:
			in, err := changes.ParseInput(c.Value)
			if err != nil {
				return false, err
			}
			text += fmt.Sprintf(":%s@%d+%d%x", c.Qualifier, c.Timestamp, in.Int, in.Bytes)
		}
	}
	l.got = append(l.got, text)
	p.movedLocked(at)
	if l.stop != nil && l.stop(l) {
		l.err = errStop
		return false, errStop
	}
	return len(l.got)%3 == 0, nil
}

func (p *changePart) movedLocked(at changes.Position) {
	if at.Through < p.at.Through {
		p.log.s.Errorf("position %d after %d", at.Through, p.at.Through)
	}
	at.Row = bytes.Clone(at.Row)
	p.at = at
}

// Flush implements changes.Writer.
func (p *changePart) Flush() error { return nil }

// Watermark implements changes.Writer.
func (p *changePart) Watermark(at changes.Position) error {
	p.log.mu.Lock()
	defer p.log.mu.Unlock()
	if at.Through < p.watermark {
		p.log.s.Errorf("watermark %d after %d", at.Through, p.watermark)
	}
	p.watermark = max(p.watermark, at.Through)
	p.movedLocked(at)
	return nil
}

// since is the position before everything.
func since(t *schema.Table) changes.Position {
	return changes.Position{Through: stamp.At(t.Stream.Since) - 1}
}

// changesOf reads all that was committed of a range.
func (s *suite) changesOf(c backend.ChangeStreamer, t *schema.Table, r row.Range) []string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	l := s.changeLog(t, r, nil)
	s.ok(l.read(ctx, c, changes.Request{Table: t.Name, Life: t.Stream.Life, Until: stamp.At(time.Now()) + stamp.Stride, Every: 10 * time.Millisecond}))
	return l.got
}

func (s *suite) sameChanges(got []string, want ...string) {
	s.Helper()
	byRow := func(a, b string) int {
		x, _, _ := strings.Cut(a, " ")
		y, _, _ := strings.Cut(b, " ")
		return strings.Compare(x, y)
	}
	got = slices.Clone(got)
	slices.SortStableFunc(got, byRow)
	slices.SortStableFunc(want, byRow)
	if !slices.Equal(got, want) {
		s.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

var leftTablet, rightTablet = row.Range{End: []byte("m")}, row.Range{Start: []byte("m")}

var changeTests = []test{
	{"EveryKind", func(s *suite) {
		c, t := s.streamed("f", "g", "n=sum")
		s.put(t.Name, "a", set("f", "q", 1000, "v"), set("g", "", 2000, ""))
		s.put(t.Name, "a", deleteColumn("f", "q"), deleteTimes("f", "q", 1000, 5000))
		s.put(t.Name, "b", deleteFamily("g"))
		s.put(t.Name, "b", deleteRow())
		s.put(t.Name, "c", row.Mutation{Op: row.AddToCell, Family: "n", Qualifier: []byte("q"), Timestamp: 1000, Input: row.Input{Kind: row.IntInput, Int: 5}},
			row.Mutation{Op: row.MergeToCell, Family: "n", Qualifier: []byte("q"), Timestamp: 1000, Input: row.Input{Kind: row.RawInput, Bytes: []byte(int64be(7))}})
		_, err := s.CheckAndMutateRow(s.ctx, t.Name, []byte("d"), nil, nil, []row.Mutation{set("f", "no", 1000, "")})
		s.ok(err)
		_, err = s.CheckAndMutateRow(s.ctx, t.Name, []byte("d"), nil, []row.Mutation{set("f", "yes", 1000, "")}, nil)
		s.ok(err)
		_, err = s.CheckAndMutateRow(s.ctx, t.Name, []byte("e"), nil, []row.Mutation{set("f", "yes", 1000, "")}, nil)
		s.ok(err)
		s.put(t.Name, "h", set("f", "q", future, ""))
		_, err = s.ReadModifyWriteRow(s.ctx, t.Name, []byte("h"), []row.Rule{{Family: "f", Qualifier: []byte("q"), IsAppend: true, Append: []byte("x")}})
		s.ok(err)
		for range 2 {
			s.ok(s.MutateRow(s.ctx, t.Name, &row.Entry{Key: []byte("i"), Mutations: []row.Mutation{set("f", "q", 1000, "once")}, Token: row.Token{Token: []byte("12345678")}}))
		}
		s.sameChanges(s.changesOf(c, t, leftTablet),
			"a set f:q@1000=v set g:@2000=", "a column f:q[0,0) column f:q[1000,5000)", "b family g", "b row",
			fmt.Sprintf("c add n:q@1000+5 merge n:q@1000+0%x", int64be(7)),
			"d set f:no@1000=", "d set f:yes@1000=", fmt.Sprintf("h set f:q@%d=", future), fmt.Sprintf("h set f:q@%d=x", future), "i set f:q@1000=once")
		s.sameChanges(s.changesOf(c, t, rightTablet))
	}},
	{"DropRowRange", func(s *suite) {
		c, t := s.streamed("f")
		for _, key := range []string{"a1", "a2", "b", "z"} {
			s.put(t.Name, key, set("f", "q", 1000, ""))
		}
		s.ok(s.DropRowRange(s.ctx, t.Name, []byte("a")))
		s.put(t.Name, "a1", set("f", "q", 2000, ""))
		s.sameChanges(s.changesOf(c, t, leftTablet), "a1 set f:q@1000=", "a1 row", "a1 set f:q@2000=", "a2 set f:q@1000=", "a2 row", "b set f:q@1000=")
	}},
	{"Resumed", func(s *suite) {
		c, t := s.streamed("f")
		var want []string
		for i := range 60 {
			key := string(rune('a' + i*7%10))
			s.put(t.Name, key, set("f", "q", int64(i)*1000, ""))
			want = append(want, fmt.Sprintf("%s set f:q@%d=", key, i*1000))
		}
		l := s.changeLog(t, leftTablet, nil)
		for len(l.got) < len(want) {
			ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
			n := 0
			l.stop = func(*changeLog) bool { n++; return n > 2 || len(l.got) == len(want) }
			err := l.read(ctx, c, changes.Request{Table: t.Name, Life: 1, Every: 10 * time.Millisecond})
			cancel()
			if !errors.Is(err, errStop) {
				s.Fatalf("got error %v", err)
			}
		}
		s.sameChanges(l.got, want...)
	}},
	{"Live", func(s *suite) {
		c, t := s.streamed("f")
		ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
		defer cancel()
		written := make(chan time.Time, 1)
		l := s.changeLog(t, leftTablet, func(l *changeLog) bool { return len(l.got) == 20 })
		go func() {
			for i := range 20 {
				s.put(t.Name, fmt.Sprint("a", i), set("f", "q", 1000, ""))
				time.Sleep(time.Millisecond)
			}
			written <- time.Now()
		}()
		err := l.read(ctx, c, changes.Request{Table: t.Name, Life: 1, Every: time.Second})
		if !errors.Is(err, errStop) {
			s.Fatalf("got error %v", err)
		}
		if d := time.Since(<-written); d > 10*time.Second {
			s.Errorf("the last record came after %v", d)
		}
	}},
	{"Partitions", func(s *suite) {
		c, t := s.streamed("f")
		parts, err := c.StreamPartitions(s.ctx, t.Name)
		s.ok(err)
		s.tile(row.All, parts)
		atM := func(r row.Range) bool { return string(r.Start) == "m" }
		if !slices.ContainsFunc(parts, atM) {
			s.Errorf("partitions %q", parts)
		}
		// A range of several is closed with them.
		several := row.Range{Start: []byte("b")}
		closed, err := c.ReadChanges(s.ctx, &changes.Request{Table: t.Name, Life: 1, Within: several, From: since(t), Every: 10 * time.Millisecond}, s.changeLog(t, several, nil).parts[0])
		s.ok(err)
		if closed == nil {
			s.Fatalf("%q is not closed", several)
		}
		s.tile(several, closed.Partitions)
		if !slices.ContainsFunc(closed.Partitions, atM) {
			s.Errorf("closed %+v", closed)
		}
		// They are the table's, unless it splits them meanwhile.
		now, err := c.StreamPartitions(s.ctx, t.Name)
		s.ok(err)
		if len(parts) == 2 && slices.EqualFunc(parts, now, sameRange) && !slices.EqualFunc(parts, closed.Partitions, sameRange) {
			s.Errorf("partitions %q, closed %+v", parts, closed)
		}
	}},
	{"Refused", func(s *suite) {
		c, t := s.streamed("f")
		s.put(t.Name, "a", set("f", "q", 1000, ""))
		req := changes.Request{Table: t.Name, Life: 2, Every: 10 * time.Millisecond}
		l := s.changeLog(t, leftTablet, nil)
		s.fails(l.read(s.ctx, c, req), fault.FailedPrecondition)
		req.Life = 1
		ctx, cancel := context.WithTimeout(s.ctx, 100*time.Millisecond)
		err := l.read(ctx, c, req)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			s.Errorf("got error %v", err)
		}
		_, err = s.UpdateTable(s.ctx, t.Name, func(t *schema.Table) error { t.Stream = nil; return nil })
		s.ok(err)
		ctx, cancel = context.WithTimeout(s.ctx, time.Minute)
		defer cancel()
		s.fails(l.read(ctx, c, req), fault.FailedPrecondition)
		req.Table += "x"
		s.fails(l.read(ctx, c, req), fault.NotFound)
	}},
}
