package matview

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"slices"
	"unsafe"

	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/varint"
)

// Deltas adds up what changes of contributions mean to the rows of a view. It serves
// one goroutine.
type Deltas struct {
	v     *schema.View
	kinds []kind
	byKey map[string]int32
	// groups has what is known of each key; sums has len(kinds) of each group.
	groups []group
	sums   []sum
	bytes  arena
	size   int
	order  []int32
	out    []byte
	old    []item
	now    []item
	name   []byte
}

// A group is the change of one row of the view.
type group struct {
	key     []byte
	rows    int64
	counted counts
}

// counts are changes of how often values are there.
type counts struct {
	list []counted
	at   map[string]int // of many: the index in list
}

// A counted is a value of a column, and how often it came more than it went.
type counted struct {
	// name is the number of the column and the value: the qualifier of its hidden cell.
	name []byte
	n    int64
	// cells are what an index shows for it.
	cells []byte
}

// manyCounts is from how many on a map finds values sooner.
const manyCounts = 12

// find returns the place of name, -1 if it has none.
func (c *counts) find(name []byte) int {
	if c.at != nil {
		if i, ok := c.at[string(name)]; ok {
			return i
		}
		return -1
	}
	for i := range c.list {
		if bytes.Equal(c.list[i].name, name) {
			return i
		}
	}
	return -1
}

// put adds a value that is not there. It keeps name.
func (c *counts) put(x counted) {
	c.list = append(c.list, x)
	switch {
	case c.at != nil:
		c.at[string(x.name)] = len(c.list) - 1
	case len(c.list) > manyCounts:
		c.at = make(map[string]int, 2*len(c.list))
		for i := range c.list {
			c.at[string(c.list[i].name)] = i
		}
	}
}

// An arena keeps bytes until all of them are dropped.
type arena struct{ room []byte }

const arenaBytes = 64 << 10

func (a *arena) keep(b []byte) []byte {
	if cap(a.room)-len(a.room) < len(b) {
		a.room = make([]byte, 0, max(arenaBytes, len(b)))
	}
	at := len(a.room)
	a.room = append(a.room, b...)
	return a.room[at:len(a.room):len(a.room)]
}

// NewDeltas returns empty Deltas of a view.
func NewDeltas(v *schema.View) *Deltas {
	return &Deltas{v: v, kinds: kindsOf(v), byKey: map[string]int32{}}
}

// kindsOf returns the kinds of the columns of groups; those of an index have none.
func kindsOf(v *schema.View) []kind {
	if v.Index {
		return nil
	}
	out := make([]kind, len(v.Columns))
	for i := range v.Columns {
		out[i] = kindOf(&v.Columns[i])
	}
	return out
}

// Change adds that the contribution of the source's row with that key is now, and was
// before, either of which may be empty. After an error, fault.Corruption of a malformed
// one, d is of no use.
func (d *Deltas) Change(source, before, now []byte) error {
	if bytes.Equal(before, now) {
		return nil
	}
	var err error
	if d.old, err = parseContribution(d.old[:0], before); err != nil {
		return err
	}
	if d.now, err = parseContribution(d.now[:0], now); err != nil {
		return err
	}
	sortItems(d.old)
	sortItems(d.now)
	i, j := 0, 0
	for i < len(d.old) || j < len(d.now) {
		c := -1
		if i == len(d.old) {
			c = 1
		} else if j < len(d.now) {
			c = compareItems(d.old[i], d.now[j])
		}
		switch {
		case c < 0:
			err = d.add(source, d.old[i], -1)
			i++
		case c > 0:
			err = d.add(source, d.now[j], 1)
			j++
		default:
			i, j = i+1, j+1
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func sortItems(list []item) {
	if len(list) > 1 {
		slices.SortFunc(list, compareItems)
	}
}

func compareItems(a, b item) int {
	if c := bytes.Compare(a.key, b.key); c != 0 {
		return c
	}
	return bytes.Compare(a.args, b.args)
}

func (d *Deltas) group(key []byte) int32 {
	if g, ok := d.byKey[string(key)]; ok {
		return g
	}
	g := int32(len(d.groups))
	kept := d.bytes.keep(key)
	d.byKey[unsafe.String(unsafe.SliceData(kept), len(kept))] = g
	if len(d.groups) < cap(d.groups) {
		d.groups = d.groups[:g+1]
		d.groups[g] = group{key: kept, counted: counts{list: d.groups[g].counted.list[:0]}}
	} else {
		d.groups = append(d.groups, group{key: kept})
	}
	for range d.kinds {
		d.sums = append(d.sums, sum{})
	}
	d.size += 2*len(key) + 64 + 48*len(d.kinds)
	return g
}

// add adds an item, or takes it away.
func (d *Deltas) add(source []byte, it item, sign int64) error {
	at := d.group(it.key)
	g := &d.groups[at]
	g.rows += sign
	if d.v.Index {
		d.name = indexName(d.name[:0], source, it.args)
		d.count(g, d.name, sign, it.args)
		return nil
	}
	sums := d.sums[int(at)*len(d.kinds):]
	r := varint.Of(it.args)
	for i, k := range d.kinds {
		if k == countRows {
			continue
		}
		switch r.Byte() {
		case 0:
			continue
		case 1:
		default:
			r.Fail()
		}
		s := &sums[i]
		s.n += sign
		switch k {
		case sumInts:
			s.addInt(r.Varint(), sign)
		case sumFloats:
			if s.floats == nil {
				d.size += 8 * exactWords
			}
			s.addFloat(math.Float64frombits(r.Uint64BE()), sign)
		case xorBits:
			s.lo ^= r.Uint64BE()
		case countBits:
			if s.bits == nil {
				d.size += 8 * 64
			}
			s.addBits(r.Uint64BE(), sign)
		case least, sketchings:
			d.name = append(append(d.name[:0], byte(i)), r.Bytes()...)
			d.count(g, d.name, sign, nil)
		case elements:
			d.name = append(append(d.name[:0], byte(i)), r.Take(4)...)
			d.count(g, d.name, sign, nil)
		}
	}
	if r.Bad() || r.Len() > 0 {
		return malformed("contribution")
	}
	return nil
}

func (d *Deltas) count(g *group, name []byte, sign int64, cells []byte) {
	if i := g.counted.find(name); i >= 0 {
		g.counted.list[i].n += sign
		return
	}
	x := counted{name: d.bytes.keep(name), n: sign}
	if cells != nil {
		x.cells = d.bytes.keep(cells)
	}
	g.counted.put(x)
	d.size += len(name) + len(cells) + 64
}

// indexName appends the qualifier of the hidden cell that counts an index row's cells
// for a row of the source: those of the smallest source key come first.
func indexName(dst, source, cells []byte) []byte {
	dst = append(escape(append(dst, 0), string(source)), 0, 1)
	h := sha256.Sum256(cells)
	return append(dst, h[:16]...)
}

// Size is about how many bytes the payloads take, and what they are made of.
func (d *Deltas) Size() int { return d.size }

// Each calls visit for each row of the view that changes, ascending, with its key and a
// payload for Update, both valid during the call. An error of visit is returned as it is.
// Only Reset may follow.
func (d *Deltas) Each(visit func(key, payload []byte) error) error {
	d.order = d.order[:0]
	for i := range d.groups {
		d.order = append(d.order, int32(i))
	}
	slices.SortFunc(d.order, func(a, b int32) int { return bytes.Compare(d.groups[a].key, d.groups[b].key) })
	for _, i := range d.order {
		var any bool
		if d.out, any = d.appendPayload(d.out[:0], int(i)); !any {
			continue
		}
		if err := visit(d.groups[i].key, d.out); err != nil {
			return err
		}
	}
	return nil
}

// A payload is
//
//	version rows (sum of each column) number of values (uvarint len, name, n, cells of an index)*
//
// in which values ascend.
func (d *Deltas) appendPayload(dst []byte, at int) (out []byte, any bool) {
	g := &d.groups[at]
	dst = binary.AppendVarint(append(dst, version), g.rows)
	any = g.rows != 0
	for i, k := range d.kinds {
		s := &d.sums[at*len(d.kinds)+i]
		any = any || !s.isZero()
		dst = s.append(dst, k)
	}
	live := slices.DeleteFunc(g.counted.list, func(c counted) bool { return c.n == 0 })
	g.counted = counts{list: live}
	slices.SortFunc(live, func(a, b counted) int { return bytes.Compare(a.name, b.name) })
	dst = binary.AppendUvarint(dst, uint64(len(live)))
	for i := range live {
		c := &live[i]
		dst = append(binary.AppendUvarint(dst, uint64(len(c.name))), c.name...)
		dst = binary.AppendVarint(dst, c.n)
		if d.v.Index {
			dst = append(binary.AppendUvarint(dst, uint64(len(c.cells))), c.cells...)
		}
	}
	return dst, any || len(live) > 0
}

// Reset takes away all that was added, and keeps memory.
func (d *Deltas) Reset() {
	clear(d.byKey)
	clear(d.sums)
	d.groups, d.sums, d.size = d.groups[:0], d.sums[:0], 0
	d.bytes.room = d.bytes.room[:0]
}
