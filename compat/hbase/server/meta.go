package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

// A table is a computed table: hbase:meta has a row for each region and each
// table, hbase:namespace one for each namespace.
type table struct {
	names []string
	rows  []computedRow // in the order of the scan
}

type computedRow struct {
	key   []byte
	cells []row.Cell
}

// families returns the families of a computed table; nil of none.
func (t *table) families() []string {
	if t == nil {
		return nil
	}
	return t.names
}

func (t *table) left() bool { return len(t.rows) > 0 }

// get gives a row to r.
func (t *table) get(r *reader, key []byte) error {
	for i := range t.rows {
		if bytes.Equal(t.rows[i].key, key) {
			t.rows = t.rows[i : i+1]
			return t.scan(r)
		}
	}
	return nil
}

// scan gives rows to r until it has enough.
func (t *table) scan(r *reader) error {
	for len(t.rows) > 0 {
		c := &t.rows[0]
		r.StartRow(c.key)
		for i := range c.cells {
			f := r.q.family(c.cells[i].Family)
			if f == nil {
				continue
			}
			if f.qualifiers != nil {
				if _, ok := slices.BinarySearchFunc(f.qualifiers, c.cells[i].Qualifier, bytes.Compare); !ok {
					continue
				}
			}
			r.Cell(&c.cells[i])
		}
		t.rows = t.rows[1:]
		if len(r.cells) == 0 {
			continue
		}
		if _, err := r.EndRow(); err != nil {
			return err
		}
		if r.stopped {
			return nil
		}
	}
	return nil
}

// compareMeta orders the rows of hbase:meta: by what is before the first comma,
// then by what is between the first and the last, then by the rest. Byte order
// would be another one where a start key has bytes below a comma.
func compareMeta(a, b []byte) int {
	at, ar := split(a)
	bt, br := split(b)
	if c := bytes.Compare(at, bt); c != 0 {
		return c
	}
	if (ar == nil) != (br == nil) {
		if ar == nil {
			return -1
		}
		return 1
	}
	as, ai := splitLast(ar)
	bs, bi := splitLast(br)
	if c := bytes.Compare(as, bs); c != 0 {
		return c
	}
	return bytes.Compare(ai, bi)
}

// split returns what is before the first comma, and what is behind it; nil if
// there is none.
func split(k []byte) (table, rest []byte) {
	if i := bytes.IndexByte(k, ','); i >= 0 {
		return k[:i], k[i+1:]
	}
	return k, nil
}

func splitLast(k []byte) (start, id []byte) {
	if i := bytes.LastIndexByte(k, ','); i >= 0 {
		return k[:i], k[i+1:]
	}
	return k, nil
}

// computedScan returns the rows of a computed table that a scan asks for.
func (s *Server) computedScan(ctx context.Context, name model.Name, spec *pb.Scan) (*table, error) {
	lo, hi := spec.GetStartRow(), spec.GetStopRow()
	if spec.GetReversed() {
		lo, hi = hi, lo
	}
	t, err := s.computed(ctx, name, lo, hi)
	if err != nil {
		return nil, err
	}
	compare := bytes.Compare
	if name == model.Meta {
		compare = compareMeta
	}
	start, stop := spec.GetStartRow(), spec.GetStopRow()
	includeStop := spec.GetIncludeStopRow() || spec.IncludeStopRow == nil && len(start) > 0 && bytes.Equal(start, stop)
	sign := 1
	if spec.GetReversed() {
		sign = -1
		slices.Reverse(t.rows)
	}
	t.rows = slices.DeleteFunc(t.rows, func(r computedRow) bool {
		if len(start) > 0 {
			if c := sign * compare(r.key, start); c < 0 || c == 0 && !spec.GetIncludeStartRow() {
				return true
			}
		}
		if len(stop) > 0 {
			if c := sign * compare(r.key, stop); c > 0 || c == 0 && !includeStop {
				return true
			}
		}
		return false
	})
	return t, nil
}

// computed returns a computed table, ascending: at least the rows from lo to
// hi.
func (s *Server) computed(ctx context.Context, name model.Name, lo, hi []byte) (*table, error) {
	switch name {
	case model.Meta:
		return s.meta(ctx, lo, hi)
	case model.NamespaceTable:
		return s.namespaces(ctx)
	}
	return nil, fault.New(fault.Internal, "no computed table %s", name)
}

func (s *Server) namespaces(ctx context.Context) (*table, error) {
	names, err := s.catalog.Namespaces(ctx)
	if err != nil {
		return nil, err
	}
	t := &table{names: []string{"info"}}
	for _, ns := range append(names, model.SystemNamespace) {
		d, err := proto.Marshal(&pb.NamespaceDescriptor{Name: []byte(ns)})
		if err != nil {
			return nil, err
		}
		t.rows = append(t.rows, computedRow{[]byte(ns), []row.Cell{s.cell("info", "d", int64(s.catalog.Server().StartCode), d)}})
	}
	slices.SortFunc(t.rows, func(a, b computedRow) int { return bytes.Compare(a.key, b.key) })
	return t, nil
}

// cell returns a cell of a computed table; ts is in milliseconds.
func (s *Server) cell(family, qualifier string, ts int64, value []byte) row.Cell {
	return row.Cell{Family: family, Qualifier: []byte(qualifier), Timestamp: ts * 1000, Value: value}
}

// meta returns hbase:meta as the client of ctx sees it. Tables whose names are
// outside of lo and hi, which are row keys or empty, are left out.
func (s *Server) meta(ctx context.Context, lo, hi []byte) (*table, error) {
	t := &table{names: []string{"info", "table", "rep_barrier", "ns"}}
	var list []*model.Table
	lt, _ := split(lo)
	ht, _ := split(hi)
	if len(lt) > 0 && bytes.Equal(lt, ht) {
		// A look-up of one table's region, which is what clients do all the time.
		one, err := s.catalog.Table(ctx, model.ParseName(string(lt)))
		switch {
		case err == nil:
			list = []*model.Table{one}
		case !errors.Is(err, fault.NotFound):
			return nil, err
		}
	} else {
		names, err := s.catalog.Namespaces(ctx)
		if err != nil {
			return nil, err
		}
		for _, ns := range names {
			tables, err := s.catalog.Tables(ctx, ns)
			if err != nil {
				return nil, err
			}
			list = append(list, tables...)
		}
	}
	for _, ns := range []model.Name{model.NamespaceTable} {
		if len(lt) == 0 || string(lt) <= ns.String() {
			t.region(s, systemRegion(s, ns))
			t.rows = append(t.rows, computedRow{[]byte(ns.String()), []row.Cell{s.cell("table", "state", int64(s.catalog.Server().StartCode), []byte{8, 0})}})
		}
	}
	for _, m := range list {
		if s.o.Sees != nil {
			if ok, err := s.o.Sees(ctx, m.Resource); err != nil {
				return nil, err
			} else if !ok {
				continue
			}
		}
		regions, err := s.catalog.Regions(ctx, m)
		if errors.Is(err, fault.NotFound) {
			continue // deleted a moment ago
		}
		if err != nil {
			return nil, err
		}
		state, err := proto.Marshal(&pb.TableState{State: pb.TableState_State(m.Stored.State).Enum()})
		if err != nil {
			return nil, err
		}
		at := m.Schema.CreateTime.UnixMilli()
		t.rows = append(t.rows, computedRow{[]byte(m.Name.String()), []row.Cell{s.cell("table", "state", at, state)}})
		for _, r := range regions {
			t.region(s, r)
		}
	}
	slices.SortFunc(t.rows, func(a, b computedRow) int { return compareMeta(a.key, b.key) })
	return t, nil
}

// systemRegion is the only region of a computed table other than hbase:meta.
func systemRegion(s *Server, name model.Name) *model.Region {
	return s.catalog.Computed(name)
}

// region adds the row of a region, with its cells in order.
func (t *table) region(s *Server, r *model.Region) {
	info, err := proto.Marshal(r.Info())
	if err != nil {
		panic(err) // it has every required field
	}
	server := s.catalog.At(r)
	at := int64(r.ID)
	t.rows = append(t.rows, computedRow{r.Name(), []row.Cell{
		s.cell("info", "regioninfo", at, append([]byte("PBUF"), info...)),
		s.cell("info", "seqnumDuringOpen", at, binary.BigEndian.AppendUint64(nil, r.ID)),
		s.cell("info", "server", at, []byte(server.HostPort())),
		s.cell("info", "serverstartcode", at, binary.BigEndian.AppendUint64(nil, server.StartCode)),
		s.cell("info", "sn", at, []byte(strings.Join([]string{server.Host, fmt.Sprint(server.Port), fmt.Sprint(server.StartCode)}, ","))),
		s.cell("info", "state", at, []byte("OPEN")),
	}})
}
