package matview

import (
	"bytes"
	"encoding/binary"
	"slices"
	"time"

	"github.com/trestledb/trestle/engine/aggregate"
	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/stamp"
	"github.com/trestledb/trestle/engine/varint"
)

// A Target applies updates to rows of a view. It serves one goroutine.
type Target struct {
	v          *schema.View
	kinds      []kind
	columns    []kind   // of a state
	qualifiers [][]byte // of v.Columns
	families   []string // that clients see
	st         state
	reads      Reader
	changes    counts // of this Apply; countColumn makes them what each count is afterwards
	muts       []row.Mutation
	before     [][]byte // what the columns were
	// came and went are which of a column's values did, and name and value are where one is
	// made. room has what muts refer to.
	came, went  []int
	name, value []byte
	room        arena
}

// NewTarget returns the Target of a view.
func NewTarget(v *schema.View) *Target {
	t := &Target{v: v, kinds: kindsOf(v), families: []string{defaultFamily}}
	if t.columns = t.kinds; v.Index {
		t.columns = []kind{least}
	}
	for _, c := range v.Columns {
		t.qualifiers = append(t.qualifiers, []byte(c.Qualifier))
		if !slices.Contains(t.families, c.Family) {
			t.families = append(t.families, c.Family)
		}
	}
	return t
}

// A state is what the hidden cell of a row says of it:
//
//	version shards (shard, seq)* rows (sum, and what a column counts, of each column)
//
// A row of an index has one column of kind least without a sum.
type state struct {
	shards []shard
	rows   int64
	sums   []sum
	// first is, of a column of kind least, the first value that is there, nil if there is
	// none. sketches are those of the other kinds that count values, nil if no value is
	// there, and distinct how many elements are.
	first    [][]byte
	sketches []*aggregate.Sketch
	distinct []int64
}

// A shard is the last update of a shard that the row has seen.
type shard struct{ id, seq uint64 }

// manyShards is from how many on a row forgets those that have sent nothing for stateAge.
const manyShards = 32

// zeroed returns n zeros, in s if there is room.
func zeroed[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	s = s[:n]
	clear(s)
	return s
}

func (t *Target) read(s *state, b []byte) error {
	n := len(t.columns)
	*s = state{shards: s.shards[:0], sums: zeroed(s.sums, n), first: zeroed(s.first, n), sketches: zeroed(s.sketches, n), distinct: zeroed(s.distinct, n)}
	if b == nil {
		return nil
	}
	r := varint.Of(b)
	if r.Byte() != version {
		return malformed("state")
	}
	for range r.Count() {
		s.shards = append(s.shards, shard{r.Uvarint(), r.Uvarint()})
	}
	if r.Len() == 0 && !r.Bad() { // of a row that is gone
		return nil
	}
	s.rows = r.Varint()
	for i, k := range t.columns {
		s.sums[i].read(&r, k)
		switch k {
		case least:
			switch r.Byte() {
			case 0:
			case 1:
				if s.first[i] = t.room.keep(r.Bytes()); s.first[i] == nil {
					s.first[i] = []byte{}
				}
			default:
				r.Fail()
			}
		case elements, sketchings:
			s.distinct[i] = r.Varint()
			if b := r.Bytes(); len(b) > 0 {
				k, err := aggregate.ParseSketch(b)
				if err != nil {
					return malformed("state")
				}
				s.sketches[i] = k
			}
		}
	}
	if r.Bad() || r.Len() > 0 {
		return malformed("state")
	}
	return nil
}

// append appends the state, without any but the shards if gone.
func (t *Target) append(dst []byte, s *state, gone bool) []byte {
	dst = binary.AppendUvarint(append(dst, version), uint64(len(s.shards)))
	for _, h := range s.shards {
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, h.id), h.seq)
	}
	if gone {
		return dst
	}
	dst = binary.AppendVarint(dst, s.rows)
	for i, k := range t.columns {
		dst = s.sums[i].append(dst, k)
		switch k {
		case least:
			if s.first[i] == nil {
				dst = append(dst, 0)
				continue
			}
			dst = append(binary.AppendUvarint(append(dst, 1), uint64(len(s.first[i]))), s.first[i]...)
		case elements, sketchings:
			dst = binary.AppendVarint(dst, s.distinct[i])
			var b []byte
			if s.sketches[i] != nil {
				b = s.sketches[i].Encode()
			}
			dst = append(binary.AppendUvarint(dst, uint64(len(b))), b...)
		}
	}
	return dst
}

// isZero tells whether there is nothing to remember but shards.
func (s *state) isZero() bool {
	if s.rows != 0 {
		return false
	}
	for i := range s.sums {
		if !s.sums[i].isZero() || s.first[i] != nil || s.distinct[i] != 0 {
			return false
		}
	}
	return true
}

// see notes an update; ok is false if the row has seen it before.
func (s *state) see(id, seq uint64) (ok bool) {
	for i := range s.shards {
		if h := &s.shards[i]; h.id == id {
			if seq <= h.seq {
				return false
			}
			h.seq = seq
			return true
		}
	}
	s.shards = append(s.shards, shard{id, seq})
	return true
}

// forget drops shards that have sent nothing for long, if there are many.
func (s *state) forget() {
	if len(s.shards) <= manyShards {
		return
	}
	var newest uint64
	for _, h := range s.shards {
		newest = max(newest, h.seq)
	}
	age := uint64(stateAge.Microseconds()) * stamp.Stride
	s.shards = slices.DeleteFunc(s.shards, func(h shard) bool { return h.seq+age < newest })
}

// Apply returns what updates, in order, make of the row that r reads: mutations that
// must be applied as one, before the row is read for another Apply. None means that all
// have been applied before. Their slices are valid until the next call, and may share
// memory with payloads. now is the
// server's clock. A malformed payload is fault.Invalid; a malformed cell is
// fault.Corruption.
//
// It reads the state and the count of each value that the updates name, and looks for
// the next value when the first one is gone. A sketch that has lost an element is made
// anew, of all elements or those of a register.
func (t *Target) Apply(r Reader, updates []Update, now time.Time) ([]row.Mutation, error) {
	t.reads, t.muts, t.changes = r, t.muts[:0], counts{list: t.changes.list[:0]}
	t.room.room = t.room.room[:0]
	cells, err := r.Cell(StateFamily, nil)
	gone := false
	if err == nil && cells == nil {
		cells, err = r.Cell(GoneFamily, nil)
		gone = cells != nil
	}
	if err != nil {
		return nil, err
	}
	s := &t.st
	if err := t.read(s, cells); err != nil {
		return nil, err
	}
	shown := s.rows > 0
	var first []byte
	if t.v.Index {
		first = s.first[0]
	}
	t.before = t.before[:0]
	for i := range t.kinds {
		v, ok := t.result(i, s)
		if ok && v == nil {
			v = []byte{}
		}
		t.before = append(t.before, v)
	}
	any := false
	for _, u := range updates {
		if !s.see(u.Shard, u.Seq) {
			continue
		}
		any = true
		if err := t.add(s, u.Payload); err != nil {
			return nil, err
		}
	}
	if !any {
		return nil, nil
	}
	if err := t.count(s); err != nil {
		return nil, err
	}
	if t.v.Index {
		err = t.showCells(s, first)
	} else {
		t.showResults(s, shown)
	}
	if err != nil {
		return nil, err
	}
	s.forget()
	switch {
	case s.isZero():
		if !gone && cells != nil {
			t.drop(StateFamily, nil)
		}
		if gone {
			// By a clock that was set back, the one from before would be the newer one.
			t.drop(GoneFamily, nil)
		}
		t.muts = append(t.muts, row.Mutation{Op: row.SetCell, Family: GoneFamily, Timestamp: now.UnixMicro(), Value: t.encoded(s, true)})
	default:
		if gone {
			t.drop(GoneFamily, nil)
		}
		t.set(StateFamily, nil, t.encoded(s, false))
	}
	return t.muts, nil
}

// encoded returns what append appends, valid until the next Apply.
func (t *Target) encoded(s *state, gone bool) []byte {
	t.value = t.append(t.value[:0], s, gone)
	return t.room.keep(t.value)
}

func (t *Target) set(family string, qualifier, value []byte) {
	t.muts = append(t.muts, row.Mutation{Op: row.SetCell, Family: family, Qualifier: qualifier, Value: value})
}

func (t *Target) drop(family string, qualifier []byte) {
	t.muts = append(t.muts, row.Mutation{Op: row.DeleteColumn, Family: family, Qualifier: qualifier, Times: cell.AllTime})
}

// add adds a payload: sums to s, counts to t.changes.
func (t *Target) add(s *state, payload []byte) error {
	r := varint.Of(payload)
	if r.Byte() != version {
		return fault.New(fault.Invalid, "the payload of an update of view %s is malformed: it has another version", t.v.Name)
	}
	s.rows += r.Varint()
	for i, k := range t.kinds {
		var o sum
		o.read(&r, k)
		s.sums[i].add(k, &o)
	}
	for range r.Count() {
		c := counted{name: r.Bytes(), n: r.Varint()}
		if t.v.Index {
			c.cells = r.Bytes()
		}
		if r.Bad() || len(c.name) == 0 || int(c.name[0]) >= len(t.columns) || t.columns[c.name[0]] < least {
			r.Fail()
			break
		}
		ok := true
		switch t.columns[c.name[0]] {
		case sketchings:
			ok = t.takeApart(s, c)
		case elements:
			ok = len(c.name) == 5
			if ok {
				shape := t.shape(int(c.name[0]))
				e := binary.BigEndian.Uint32(c.name[1:])
				var register uint32
				if register, _, ok = shape.Register(e); ok {
					c.name = elementName(c.name[0], register, e)
					t.change(c)
				}
			}
		default:
			t.change(c)
		}
		if !ok {
			r.Fail()
			break
		}
	}
	if r.Bad() || r.Len() > 0 {
		return fault.New(fault.Invalid, "the payload of an update of view %s is malformed", t.v.Name)
	}
	return nil
}

// elementName returns the qualifier that counts an element of a sketch: those of a
// register stand together.
func elementName(column byte, register, element uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte{column}, register)
	return binary.BigEndian.AppendUint32(b, element)
}

// shape returns the shape of the sketch of a column of kind elements.
func (t *Target) shape(i int) aggregate.Shape {
	return aggregate.NewShape(t.v.Columns[i].Precision, t.v.Columns[i].Arg == schema.ViewInt)
}

func (t *Target) change(c counted) {
	if i := t.changes.find(c.name); i >= 0 {
		t.changes.list[i].n += c.n
		return
	}
	t.changes.put(c)
}

// takeApart counts a sketch: its shape, and each element of it.
func (t *Target) takeApart(s *state, c counted) bool {
	k, err := aggregate.ParseSketch(c.name[1:])
	if err != nil || k.Shape().Precision > MaxPrecision {
		return false
	}
	shape := k.Shape()
	prefix := append([]byte{c.name[0]}, shapeName(shape)...)
	t.change(counted{name: prefix, n: c.n})
	k.Elements(func(e uint32) {
		t.change(counted{name: binary.BigEndian.AppendUint32(slices.Clip(prefix), e), n: c.n})
	})
	s.sums[c.name[0]].lo += uint64(k.Values()) * uint64(c.n)
	return true
}

func shapeName(s aggregate.Shape) []byte {
	dense := byte(0)
	if s.Dense {
		dense = 1
	}
	return []byte{s.Precision, s.Sparse, s.Type, dense}
}

// count writes the new counts of values, and finds what becomes of first values and
// sketches.
func (t *Target) count(s *state) error {
	list := slices.DeleteFunc(t.changes.list, func(c counted) bool { return c.n == 0 })
	slices.SortFunc(list, func(a, b counted) int { return bytes.Compare(a.name, b.name) })
	t.changes = counts{list: list}
	if len(list) > manyCounts {
		t.changes.at = make(map[string]int, len(list))
		for i := range list {
			t.changes.at[string(list[i].name)] = i
		}
	}
	for from := 0; from < len(list); {
		to := from + 1
		for to < len(list) && list[to].name[0] == list[from].name[0] {
			to++
		}
		if err := t.countColumn(s, list[from:to]); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// countColumn does so for the values of one column. What n of each says becomes its
// count.
func (t *Target) countColumn(s *state, list []counted) error {
	col := list[0].name[0]
	k := t.columns[col]
	came, went := t.came[:0], t.went[:0]
	for i := range list {
		c := &list[i]
		b, err := t.reads.Cell(CountsFamily, c.name)
		if err != nil {
			return err
		}
		old, _, err := t.readCount(b)
		if err != nil {
			return err
		}
		c.n += old
		switch {
		case old <= 0 && c.n > 0:
			came = append(came, i)
		case old > 0 && c.n <= 0:
			went = append(went, i)
		}
		if c.n == 0 {
			t.drop(CountsFamily, c.name)
			continue
		}
		t.value = binary.AppendVarint(t.value[:0], c.n)
		if t.v.Index {
			t.value = append(t.value, c.cells...)
		}
		t.set(CountsFamily, c.name, t.room.keep(t.value))
	}
	t.came, t.went = came, went
	if len(came)+len(went) == 0 {
		return nil
	}
	if k == least {
		return t.findFirst(s, int(col), list, came, went)
	}
	s.distinct[col] += int64(len(came) - len(went))
	return t.sketch(s, int(col), list, came, went)
}

// readCount returns what a hidden cell of CountsFamily has; of none it is 0.
func (t *Target) readCount(b []byte) (n int64, cells []byte, err error) {
	if b == nil {
		return 0, nil, nil
	}
	r := varint.Of(b)
	n = r.Varint()
	if r.Bad() || !t.v.Index && r.Len() > 0 {
		return 0, nil, malformed("count")
	}
	return n, r.Rest(), nil
}

// findFirst finds the first value of a column.
func (t *Target) findFirst(s *state, col int, list []counted, came, went []int) error {
	first := s.first[col]
	for _, i := range went {
		if first != nil && bytes.Equal(list[i].name[1:], first) {
			first = nil
			break
		}
	}
	if first == nil && s.first[col] != nil {
		// Values that are not in list have the counts that are stored.
		from := []byte{byte(col)}
		var bad error
		err := t.reads.Cells(from, func(q, v []byte) bool {
			if len(q) == 0 || q[0] != byte(col) {
				return false
			}
			if t.changes.find(q) >= 0 {
				return true
			}
			n, _, err := t.readCount(v)
			if err != nil {
				bad = err
				return false
			}
			if n > 0 {
				first = append([]byte{}, q[1:]...)
			}
			return n <= 0
		})
		if err == nil {
			err = bad
		}
		if err != nil {
			return err
		}
		// Those in list that are there without having come may be before it.
		for i := range list {
			if list[i].n > 0 {
				first = lesser(first, list[i].name[1:])
				break
			}
		}
	}
	for _, i := range came {
		first = lesser(first, list[i].name[1:])
	}
	s.first[col] = first
	return nil
}

// lesser returns the lesser of a, which may be nil, and b.
func lesser(a, b []byte) []byte {
	if a == nil || bytes.Compare(b, a) < 0 {
		return b
	}
	return a
}

// sketch brings the sketch of a column up to date.
func (t *Target) sketch(s *state, col int, list []counted, came, went []int) error {
	if s.distinct[col] == 0 {
		s.sketches[col] = nil
		return nil
	}
	if t.columns[col] == sketchings {
		return t.merged(s, col)
	}
	shape := t.shape(col)
	k := s.sketches[col]
	switch {
	case len(went) == 0:
		if k == nil {
			k, _ = aggregate.FromElements(shape, 0, nil)
		}
		for _, i := range came {
			k.AddElement(binary.BigEndian.Uint32(list[i].name[5:]))
		}
		s.sketches[col] = k
		return nil
	case k == nil || !k.Shape().Dense || s.distinct[col] < int64(shape.SurelyDense()):
		all, err := t.elements([]byte{byte(col)}, 5)
		if err != nil {
			return err
		}
		var ok bool
		if s.sketches[col], ok = aggregate.FromElements(shape, 0, all); !ok {
			return malformed("count")
		}
		return nil
	}
	for _, i := range came {
		k.AddElement(binary.BigEndian.Uint32(list[i].name[5:]))
	}
	for _, i := range went {
		prefix := list[i].name[:5]
		left, err := t.elements(prefix, 5)
		if err != nil {
			return err
		}
		var rank byte
		for _, e := range left {
			_, r, _ := shape.Register(e)
			rank = max(rank, r)
		}
		k.SetRegister(binary.BigEndian.Uint32(prefix[1:]), rank)
	}
	return nil
}

// elements returns the elements that are there after this Apply, of qualifiers that
// begin with prefix and have the element at the place at.
func (t *Target) elements(prefix []byte, at int) ([]uint32, error) {
	var out []uint32
	var bad error
	err := t.reads.Cells(prefix, func(q, v []byte) bool {
		if !bytes.HasPrefix(q, prefix) {
			return false
		}
		if len(q) != at+4 || t.changes.find(q) >= 0 {
			return true
		}
		n, _, err := t.readCount(v)
		if bad = err; n > 0 {
			out = append(out, binary.BigEndian.Uint32(q[at:]))
		}
		return err == nil
	})
	if err == nil {
		err = bad
	}
	for i := range t.changes.list {
		c := &t.changes.list[i]
		if c.n > 0 && len(c.name) == at+4 && bytes.HasPrefix(c.name, prefix) {
			out = append(out, binary.BigEndian.Uint32(c.name[at:]))
		}
	}
	return out, err
}

// merged makes the sketch of a column of sketches anew: of one sketch for each shape
// that there is, all of which it has to have read.
func (t *Target) merged(s *state, col int) error {
	shapes := map[aggregate.Shape][]uint32{}
	add := func(q []byte) bool {
		if len(q) < 5 || q[4] > 1 {
			return false
		}
		shape := aggregate.Shape{Precision: q[1], Sparse: q[2], Type: q[3], Dense: q[4] == 1}
		switch len(q) {
		case 5:
			shapes[shape] = shapes[shape][:len(shapes[shape]):len(shapes[shape])] // that it is there
		case 9:
			shapes[shape] = append(shapes[shape], binary.BigEndian.Uint32(q[5:]))
		default:
			return false
		}
		return shape.Valid()
	}
	ok := true
	err := t.reads.Cells([]byte{byte(col)}, func(q, v []byte) bool {
		if len(q) == 0 || q[0] != byte(col) {
			return false
		}
		if t.changes.find(q) < 0 {
			n, _, err := t.readCount(v)
			ok = err == nil && (n <= 0 || add(q))
		}
		return ok
	})
	if err != nil {
		return err
	}
	for i := range t.changes.list {
		if c := &t.changes.list[i]; ok && c.n > 0 && c.name[0] == byte(col) {
			ok = add(c.name)
		}
	}
	if !ok {
		return malformed("count")
	}
	order := make([]aggregate.Shape, 0, len(shapes))
	for shape := range shapes {
		order = append(order, shape)
	}
	slices.SortFunc(order, func(a, b aggregate.Shape) int { return bytes.Compare(shapeName(a), shapeName(b)) })
	s.sketches[col] = nil
	for _, shape := range order {
		k, ok := aggregate.FromElements(shape, 0, shapes[shape])
		if !ok {
			return malformed("count")
		}
		if s.sketches[col] == nil {
			s.sketches[col] = k
		} else if s.sketches[col].Merge(k) != nil {
			// Sketches of other values, or precisions that do not go together: an error in a query.
			s.sketches[col] = nil
			return nil
		}
	}
	return nil
}

// result returns the value of the cell of a column of groups; ok is false if it has none.
func (t *Target) result(i int, s *state) (value []byte, ok bool) {
	c, k := &t.v.Columns[i], t.kinds[i]
	if s.rows <= 0 {
		return nil, false
	}
	switch k {
	case countRows:
		return binary.BigEndian.AppendUint64(nil, uint64(s.rows)), true
	case least:
		if s.first[i] == nil {
			return nil, false
		}
		return appendFromOrdered(nil, c.Arg, c.Aggregate == schema.ViewMax, s.first[i])
	case elements, sketchings:
		sk := s.sketches[i]
		switch {
		case sk == nil && (c.Aggregate != schema.ViewMerge || s.distinct[i] != 0):
			return nil, false
		case c.Aggregate == schema.ViewMerge:
			n := int64(0)
			if sk != nil {
				n = sk.Estimate()
			}
			return binary.BigEndian.AppendUint64(nil, uint64(n)), true
		case k == elements:
			sk.SetValues(s.sums[i].n)
		default:
			sk.SetValues(int64(s.sums[i].lo))
		}
		return sk.Encode(), true
	}
	return s.sums[i].appendResult(nil, c, k)
}

// showResults brings the cells of a group that clients see up to date.
func (t *Target) showResults(s *state, shown bool) {
	if s.rows <= 0 {
		if shown {
			t.hide()
		}
		return
	}
	if !shown {
		t.set(defaultFamily, nil, nil)
	}
	for i := range t.v.Columns {
		c := &t.v.Columns[i]
		v, ok := t.result(i, s)
		switch {
		case ok && (t.before[i] == nil || !bytes.Equal(t.before[i], v)):
			t.set(c.Family, t.qualifiers[i], v)
		case !ok && t.before[i] != nil:
			t.drop(c.Family, t.qualifiers[i])
		}
	}
}

// hide removes all cells that clients see.
func (t *Target) hide() {
	for _, f := range t.families {
		t.muts = append(t.muts, row.Mutation{Op: row.DeleteFamily, Family: f})
	}
}

// showCells brings the cells of an index row that clients see up to date: those that
// its first value stands for. before is which one that was.
func (t *Target) showCells(s *state, before []byte) error {
	first := s.first[0]
	switch {
	case first == nil && before != nil:
		t.hide()
		return nil
	case first == nil || before != nil && bytes.Equal(first, before):
		return nil
	}
	t.name = append(append(t.name[:0], 0), first...)
	var cells []byte
	if at := t.changes.find(t.name); at >= 0 {
		cells = t.changes.list[at].cells
	} else {
		b, err := t.reads.Cell(CountsFamily, t.name)
		if err == nil {
			_, cells, err = t.readCount(bytes.Clone(b))
		}
		if err != nil {
			return err
		}
	}
	if before == nil {
		t.set(defaultFamily, nil, nil)
	}
	r := varint.Of(cells)
	for i := range t.v.Columns {
		c := &t.v.Columns[i]
		if c.Map {
			if before != nil {
				t.muts = append(t.muts, row.Mutation{Op: row.DeleteFamily, Family: c.Family})
			}
			for range r.Count() {
				q := r.Bytes()
				t.set(c.Family, q, r.Bytes())
			}
			continue
		}
		switch r.Byte() {
		case 0:
			if before != nil {
				t.drop(c.Family, t.qualifiers[i])
			}
		case 1:
			t.set(c.Family, t.qualifiers[i], r.Bytes())
		default:
			r.Fail()
		}
	}
	if r.Bad() || r.Len() > 0 {
		return malformed("count")
	}
	return nil
}
