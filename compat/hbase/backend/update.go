package backend

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/plan"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// A view is what was read of a row.
type view struct {
	cells []row.Cell // in read order
	// version is the row's version, nil if it has none.
	version []byte
	tokens  map[string]bool
}

func (v *view) content() content {
	out := make(content, len(v.cells))
	for i := range v.cells {
		c := &v.cells[i]
		out.put(column{c.Family, string(c.Qualifier)}, c.Timestamp, c.Value)
	}
	return out
}

// viewer collects a row.
type viewer struct {
	t     *table
	v     *view
	bytes int
}

// piece implements taker.
func (w *viewer) piece(p *piece) (bool, error) {
	for i := range p.cells {
		c := &p.cells[i]
		if w.t.versioned && string(c.Family) == versionFamily {
			if string(c.Qualifier) == versionQualifier {
				w.v.version = c.Value
			} else if k, ok := strings.CutPrefix(string(c.Qualifier), tokenPrefix); ok {
				if w.v.tokens == nil {
					w.v.tokens = map[string]bool{}
				}
				w.v.tokens[k] = true
			}
			continue
		}
		if w.bytes += wire.CellSize(len(c.Row), len(c.Family), len(c.Qualifier), len(c.Value)); w.bytes > schema.MaxRow {
			return false, fault.New(fault.FailedPrecondition, "Row %q has more than %d bytes, too many to be changed by what it holds", c.Row, schema.MaxRow)
		}
		w.v.cells = append(w.v.cells, row.Cell{Family: string(c.Family), Qualifier: w.t.fromHBase(c.Qualifier), Timestamp: w.t.unit.Micros(c.Timestamp), Value: c.Value})
	}
	return false, nil
}

// end implements taker.
func (w *viewer) end() (bool, error) { return true, nil }

// view reads the columns of a row.
func (b *Backend) view(ctx context.Context, t *table, key []byte, columns []*pb.Column, maxVersions uint32) (*view, error) {
	if t.versioned {
		columns = append(columns, &pb.Column{Family: []byte(versionFamily)})
		slices.SortFunc(columns, func(a, b *pb.Column) int { return bytes.Compare(a.Family, b.Family) })
	}
	v := &view{}
	if len(columns) == 0 {
		return v, nil
	}
	s := &scanner{b: b, client: b.client(), table: t.key(), template: &pb.Scan{Column: columns, MaxVersions: proto.Uint32(maxVersions)}, rows: 1}
	return v, s.run(ctx, row.Single(key), &viewer{t: t, v: v})
}

const allVersions = 1<<31 - 1

// versionIs is the condition that a row has that version.
func versionIs(key, version []byte) *pb.Condition {
	return equals(key, versionFamily, []byte(versionQualifier), version)
}

// equals is the condition that the newest cell of a column has a value, or that
// there is none if it is nil.
func equals(key []byte, family string, qualifier, value []byte) *pb.Condition {
	c := &pb.Condition{Row: key, Family: []byte(family), Qualifier: notNil(qualifier), CompareType: pb.CompareType_EQUAL.Enum()}
	// To HBase a cell with an empty value is the same as none.
	c.Comparator = comparator("BinaryComparator", &pb.BinaryComparator{Comparable: &pb.ByteArrayComparable{Value: notNil(value)}})
	return c
}

func comparator(name string, m proto.Message) *pb.Comparator {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err) // all required fields are set
	}
	return &pb.Comparator{Name: proto.String(filters + name), SerializedComparator: b}
}

// errRepeated says that a change with the same token was made before.
var errRepeated = errors.New("the change was made before")

// compareAndSet reads the columns of a row and makes the change that decide
// returns, if the row is still the same then; else it begins again. decide may
// be called several times; a nil change changes nothing. errRepeated if the row
// has the token.
func (b *Backend) compareAndSet(ctx context.Context, t *table, key []byte, columns []*pb.Column, token []byte, decide func(*view) (*change, error)) error {
	if !t.versioned {
		return fault.New(fault.FailedPrecondition,
			"Table %s was made through HBase and its rows have no version: this change depends on the row in a way that HBase cannot check", t.schema.Name)
	}
	var mine []byte // what the last attempt would have made the version
	for attempt := 0; ; attempt++ {
		v, err := b.view(ctx, t, key, slices.Clone(columns), allVersions)
		if err != nil {
			return err
		}
		if mine != nil && bytes.Equal(v.version, mine) {
			return nil // the answer to a call that was sent twice was the second's
		}
		if len(token) > 0 && v.tokens[string(token)] {
			return errRepeated
		}
		c, err := decide(v)
		if err != nil || c == nil || c.empty() && len(token) == 0 {
			return err
		}
		mine = newVersion()
		var tokens [][]byte
		if len(token) > 0 {
			tokens = [][]byte{token}
		}
		processed, err := b.atomic(ctx, t, key, c.actions(t, key, mine, tokens), versionIs(key, v.version))
		if err != nil || processed {
			return err
		}
		// Another update was faster, so there is progress; make way if there are many.
		if err := sleep(ctx, time.Duration(rand.Int64N(int64(min(attempt+1, 32))*int64(2*time.Millisecond)))); err != nil {
			return err
		}
	}
}

// dependent applies an entry that depends on what the row holds.
func (b *Backend) dependent(ctx context.Context, t *table, e *row.Entry) error {
	if !t.versioned {
		return b.approximate(ctx, t, e)
	}
	s := scope{}
	s.add(t, e.Mutations)
	at := now(t)
	err := b.compareAndSet(ctx, t, e.Key, s.columns(t), e.Token.Token, func(v *view) (*change, error) {
		return apply(t, s, v.content(), e.Mutations, at)
	})
	if errors.Is(err, errRepeated) {
		return nil
	}
	return err
}

// approximate applies an entry to a table that was made through HBase, without
// a check that the row has not changed since it was read. Aggregates need one.
func (b *Backend) approximate(ctx context.Context, t *table, e *row.Entry) error {
	for i := range e.Mutations {
		if op := e.Mutations[i].Op; op == row.AddToCell || op == row.MergeToCell {
			return fault.New(fault.FailedPrecondition, "Table %s was made through HBase: it has no aggregates", t.schema.Name)
		}
	}
	s := scope{}
	s.add(t, e.Mutations)
	v, err := b.view(ctx, t, e.Key, s.columns(t), allVersions)
	if err != nil {
		return err
	}
	c, err := apply(t, s, v.content(), e.Mutations, now(t))
	if err != nil {
		return err
	}
	// Only single cells are deleted, so that no marker hides what is written.
	before := v.content()
	for col := range c.columns {
		for ts := range before[col] {
			c.cells[col] = append(c.cells[col], ts)
		}
		delete(c.columns, col)
	}
	return b.write(ctx, t, e.Key, c)
}

// predicateColumns are the columns that a filter looks at.
func predicateColumns(t *table, f *filter.Node) (*filter.Program, []*pb.Column, error) {
	q, err := newQuery(t, f)
	if err != nil {
		return nil, nil, err
	}
	return q.program, q.scan.Column, nil
}

// matches tells whether a filter leaves a cell of a row.
func matches(p *filter.Program, key []byte, cells []row.Cell) (bool, error) {
	pl := p.Predicate(nil)
	if !pl.StartRow(key) {
		return false, nil
	}
	for i := range cells {
		if pl.Cell(&cells[i]) == filter.NextRow {
			break
		}
	}
	err := pl.EndRow()
	return pl.Found(), err
}

// CheckAndMutateRow implements backend.Data.
func (b *Backend) CheckAndMutateRow(ctx context.Context, resource string, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (matched bool, err error) {
	err = b.onTable(ctx, resource, func(t *table) error {
		program, columns, err := predicateColumns(t, predicate)
		if err != nil {
			return err
		}
		p := plan.New(t.schema, time.Now())
		for _, m := range []struct {
			muts []row.Mutation
			path string
		}{{then, "true_mutations"}, {otherwise, "false_mutations"}} {
			if _, err := p.Check(key, m.muts, m.path); err != nil {
				return err
			}
			if err := checkTimes(t, m.muts); err != nil {
				return err
			}
		}
		if !t.versioned {
			matched, err = b.checkNatively(ctx, t, key, predicate, then, otherwise)
			return err
		}
		s := scope{}
		for _, c := range columns {
			if len(c.Qualifier) == 0 {
				s.family(string(c.Family))
			}
			for _, q := range c.Qualifier {
				s.column(string(c.Family), string(t.fromHBase(q)))
			}
		}
		s.add(t, then)
		s.add(t, otherwise)
		at := now(t)
		return b.compareAndSet(ctx, t, key, s.columns(t), nil, func(v *view) (*change, error) {
			var err error
			if matched, err = matches(program, key, v.cells); err != nil {
				return nil, err
			}
			muts := otherwise
			if matched {
				muts = then
			}
			if len(muts) == 0 {
				return nil, nil
			}
			return apply(t, s, v.content(), muts, at)
		})
	})
	return matched, err
}

// ReadModifyWriteRow implements backend.Data.
func (b *Backend) ReadModifyWriteRow(ctx context.Context, resource string, key []byte, rules []row.Rule) ([]row.Cell, error) {
	var out []row.Cell
	err := b.onTable(ctx, resource, func(t *table) error {
		p := plan.New(t.schema, time.Now())
		if err := p.CheckRules(key, rules); err != nil {
			return err
		}
		if !t.versioned {
			var err error
			out, err = b.modifyNatively(ctx, t, key, rules)
			return err
		}
		s := scope{}
		for i := range rules {
			s.column(rules[i].Family, string(rules[i].Qualifier))
		}
		return b.compareAndSet(ctx, t, key, s.columns(t), nil, func(v *view) (*change, error) {
			out = out[:0]
			c := newChange()
			at := now(t)
			newest := map[column]*row.Cell{}
			for i := range v.cells {
				col := column{v.cells[i].Family, string(v.cells[i].Qualifier)}
				if newest[col] == nil {
					newest[col] = &v.cells[i]
				}
			}
			changed := map[column]*row.Cell{}
			for i := range rules {
				r := &rules[i]
				col := column{r.Family, string(r.Qualifier)}
				have := changed[col]
				if have == nil {
					have = &row.Cell{Family: r.Family, Qualifier: r.Qualifier, Timestamp: at}
					if old := newest[col]; old != nil {
						have.Value, have.Timestamp = notNil(old.Value), max(at, old.Timestamp)
					}
					changed[col] = have
				}
				var err error
				if have.Value, err = plan.Modify(have.Value, r); err != nil {
					return nil, err
				}
			}
			for col, have := range changed {
				c.sets.put(col, have.Timestamp, have.Value)
				out = append(out, *have)
			}
			return c, nil
		})
	})
	if err != nil {
		return nil, err
	}
	sortCells(out)
	return out, nil
}

// UpdateRow implements backend.RowUpdater.
func (b *Backend) UpdateRow(ctx context.Context, resource string, key, token []byte, read *filter.Node, decide func([]row.Cell) ([]row.Mutation, error)) (repeated bool, err error) {
	if err := plan.CheckToken(row.Token{Token: token}, time.Now()); err != nil {
		return false, err
	}
	err = b.onTable(ctx, resource, func(t *table) error {
		program, err := filter.Compile(read)
		if err != nil {
			return err
		}
		s := scope{}
		for name := range t.schema.Families {
			s.family(name)
		}
		p := plan.New(t.schema, time.Now())
		return b.compareAndSet(ctx, t, key, s.columns(t), token, func(v *view) (*change, error) {
			k := &keeper{}
			pl := program.Pipeline(k, nil)
			if pl.StartRow(key) {
				for i := range v.cells {
					if pl.Cell(&v.cells[i]) == filter.NextRow {
						break
					}
				}
				if err := pl.EndRow(); err != nil {
					return nil, err
				}
			}
			muts, err := decide(k.cells)
			if err != nil || len(muts) == 0 {
				return nil, err
			}
			if _, err := p.Check(key, muts, "mutations"); err != nil {
				return nil, err
			}
			if err := checkTimes(t, muts); err != nil {
				return nil, err
			}
			return apply(t, s, v.content(), muts, now(t))
		})
	})
	if errors.Is(err, errRepeated) {
		return true, nil
	}
	return false, err
}

type keeper struct{ cells []row.Cell }

// Cell implements filter.Writer.
func (k *keeper) Cell(c *row.Cell) { k.cells = append(k.cells, c.Clone()) }

func sortCells(cells []row.Cell) {
	slices.SortFunc(cells, func(a, b row.Cell) int {
		if c := strings.Compare(a.Family, b.Family); c != 0 {
			return c
		}
		return bytes.Compare(a.Qualifier, b.Qualifier)
	})
}

// attachCells moves the cells of a block to the results that they are of.
func attachCells(r *pb.RegionActionResult, block []byte) {
	cells := wire.NewCells(block)
	for _, x := range r.GetResultOrException() {
		for range x.GetResult().GetAssociatedCellCount() {
			var c wire.Cell
			if cells.Next(&c) != nil {
				return
			}
			x.Result.Cell = append(x.Result.Cell, &pb.Cell{Row: c.Row, Family: c.Family, Qualifier: c.Qualifier, Timestamp: proto.Uint64(uint64(c.Timestamp)), Value: c.Value})
		}
	}
}

// modifyNatively carries out rules by HBase's own Increment and Append, which
// know one rule for each column.
func (b *Backend) modifyNatively(ctx context.Context, t *table, key []byte, rules []row.Rule) ([]row.Cell, error) {
	increments, appends := map[string]*pb.MutationProto_ColumnValue{}, map[string]*pb.MutationProto_ColumnValue{}
	seen := map[column]bool{}
	for i := range rules {
		r := &rules[i]
		col := column{r.Family, string(r.Qualifier)}
		if seen[col] {
			return nil, fault.New(fault.FailedPrecondition, "Table %s was made through HBase, which cannot apply two rules to the column %s:%s at once",
				t.schema.Name, r.Family, r.Qualifier)
		}
		seen[col] = true
		to, value := appends, r.Append
		if !r.IsAppend {
			to, value = increments, binary.BigEndian.AppendUint64(nil, uint64(r.Increment))
		}
		if to[r.Family] == nil {
			to[r.Family] = &pb.MutationProto_ColumnValue{Family: []byte(r.Family)}
		}
		to[r.Family].QualifierValue = append(to[r.Family].QualifierValue, &pb.MutationProto_ColumnValue_QualifierValue{Qualifier: notNil(r.Qualifier), Value: notNil(value)})
	}
	var muts []*pb.MutationProto
	if len(increments) > 0 {
		muts = append(muts, mutation(key, pb.MutationProto_INCREMENT, increments))
	}
	if len(appends) > 0 {
		muts = append(muts, mutation(key, pb.MutationProto_APPEND, appends))
	}
	muts[0].Nonce = nonce()
	r, _, err := b.multi(ctx, t, key, muts, nil)
	if err != nil {
		if strings.Contains(err.Error(), "not a long") {
			return nil, fault.New(fault.FailedPrecondition, "Cannot increment a value that is not 64 bits long: %v", err)
		}
		return nil, err
	}
	var out []row.Cell
	for _, x := range r.GetResultOrException() {
		for _, c := range x.GetResult().GetCell() {
			out = append(out, row.Cell{Family: string(c.GetFamily()), Qualifier: c.GetQualifier(), Timestamp: t.unit.Micros(int64(c.GetTimestamp())), Value: c.GetValue()})
		}
	}
	sortCells(out)
	return out, nil
}

// native returns the condition that HBase checks for a predicate: that a column
// has a cell, or that its newest cell has a value. negated is the opposite.
func native(t *table, key []byte, f *filter.Node) (condition, negated *pb.Condition, ok bool) {
	if f == nil || f.Op != filter.Chain {
		return nil, nil, false
	}
	var family, qualifier, value *string
	newest := false
	for _, k := range f.Children {
		if k == nil {
			continue
		}
		switch k.Op {
		case filter.PassAll, filter.StripValue:
		case filter.FamilyRegex, filter.QualifierRegex, filter.ValueRegex:
			s, literal := literal(k.Pattern)
			if !literal {
				return nil, nil, false
			}
			switch {
			case k.Op == filter.FamilyRegex && family == nil:
				family = &s
			case k.Op == filter.QualifierRegex && qualifier == nil && !newest:
				qualifier = &s
			case k.Op == filter.ValueRegex && value == nil && newest && s != "":
				value = &s
			default:
				return nil, nil, false
			}
		case filter.CellsPerColumnLimit:
			if k.N != 1 {
				return nil, nil, false
			}
			newest = true
		default:
			return nil, nil, false
		}
	}
	if family == nil || qualifier == nil || value == nil {
		return nil, nil, false
	}
	if _, ok := t.schema.Families[*family]; !ok {
		return nil, nil, false
	}
	condition = equals(key, *family, []byte(*qualifier), []byte(*value))
	negated = proto.Clone(condition).(*pb.Condition)
	negated.CompareType = pb.CompareType_NOT_EQUAL.Enum()
	return condition, negated, true
}

// literal returns the only string that a pattern matches, if it is plain.
func literal(pattern []byte) (string, bool) {
	var out []byte
	for i := 0; i < len(pattern); i++ {
		c := pattern[i]
		if c == '\\' && i+1 < len(pattern) && !plainByte(pattern[i+1]) {
			i++
			out = append(out, pattern[i])
			continue
		}
		if bytes.IndexByte([]byte(`\.+*?()|[]{}^$`), c) >= 0 {
			return "", false
		}
		out = append(out, c)
	}
	return string(out), true
}

var errNotNative = errors.New("HBase cannot check that")

// checkNatively is CheckAndMutateRow on a table that was made through HBase.
// Each branch is written on the condition that it is the right one, which HBase
// checks with the row locked.
func (b *Backend) checkNatively(ctx context.Context, t *table, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (bool, error) {
	yes, no, ok := native(t, key, predicate)
	changes := [2]*change{}
	for i, muts := range [][]row.Mutation{then, otherwise} {
		var plain bool
		changes[i], plain = blind(t, muts, now(t))
		ok = ok && plain
	}
	if !ok {
		return false, fault.New(fault.FailedPrecondition, "Table %s was made through HBase and its rows have no version: "+
			"a predicate has to be the value of one column's newest cell, and its mutations must not delete what they write: %w", t.schema.Name, errNotNative)
	}
	for attempt := 0; ; attempt++ {
		for i, condition := range []*pb.Condition{yes, no} {
			if changes[i].empty() {
				continue
			}
			r, resent, err := b.multi(ctx, t, key, changes[i].actions(t, key, nil, nil), condition)
			if err != nil || r.GetProcessed() {
				return i == 0, err
			}
			if resent {
				// The condition may be false because the first call made the change.
				return false, fault.New(fault.Unavailable, "HBase's answer was lost: the row may have been changed, or not")
			}
		}
		if changes[0].empty() || changes[1].empty() {
			// The branch that writes nothing was the right one.
			if changes[0].empty() && changes[1].empty() {
				v, err := b.view(ctx, t, key, []*pb.Column{{Family: yes.Family, Qualifier: [][]byte{yes.Qualifier}}}, 1)
				if err != nil {
					return false, err
				}
				p, err := filter.Compile(predicate)
				if err != nil {
					return false, err
				}
				return matches(p, key, v.cells)
			}
			return changes[0].empty(), nil
		}
		if err := sleep(ctx, time.Duration(min(attempt+1, 20))*time.Millisecond); err != nil {
			return false, err
		}
	}
}
