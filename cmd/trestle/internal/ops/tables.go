package ops

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/tablet"
)

// A page is a part of a list: of tablets, tables or backups.
type page struct {
	limit, offset int // a limit of 0: all are asked for
	byLoad        bool
}

// lookTime is how long who looks at tablets waits for METADATA.
const lookTime = 4 * time.Second

// maxPage bounds what a page has.
const maxPage = 1000

// pageOf returns the page that a request asks for.
func pageOf(q *request) (p page, err error) {
	number := func(name string, least, most int) (n int) {
		text := q.URL.Query().Get(name)
		if text == "" || err != nil {
			return 0
		}
		if n, err = strconv.Atoi(text); err != nil || n < least || n > most {
			err = fault.New(fault.Invalid, "%s must be between %d and %d", name, least, most)
		}
		return n
	}
	p = page{limit: number("limit", 1, maxPage), offset: number("offset", 0, 1<<30)}
	switch order := q.URL.Query().Get("order"); {
	case err != nil:
	case order == "load":
		p.byLoad = true
	case order != "" && order != "key":
		err = fault.New(fault.Invalid, "order must be key or load")
	}
	if err == nil && p.limit == 0 && p.offset > 0 {
		err = fault.New(fault.Invalid, "give a limit with offset")
	}
	return p, err
}

// paged keeps what of many is on a page: with a limit no more than that needs, but all without.
type paged[T any] struct {
	page
	busy  func(*T) busy // what byLoad orders by, the most first
	total int
	kept  []T
	least busy // what one must be above to be kept, once there are enough
}

// busy is the load of something, and its bytes, which tell apart what has none.
type busy struct {
	load  float64
	bytes int64
}

func (b busy) compare(o busy) int {
	return cmp.Or(cmp.Compare(b.load, o.load), cmp.Compare(b.bytes, o.bytes))
}

// add adds the next.
func (p *paged[T]) add(v *T) {
	p.total++
	enough := p.offset + p.limit
	switch {
	case p.limit == 0:
	case !p.byLoad:
		if p.total <= p.offset || p.total > enough {
			return
		}
	case p.total > enough && p.busy(v).compare(p.least) <= 0:
		return // those before it come first
	case len(p.kept) >= 2*enough:
		p.sort()
		p.kept = p.kept[:enough]
		p.least = p.busy(&p.kept[enough-1])
	}
	p.kept = append(p.kept, *v)
}

func (p *paged[T]) sort() {
	slices.SortStableFunc(p.kept, func(a, b T) int { return p.busy(&b).compare(p.busy(&a)) })
}

// on returns what is on the page.
func (p *paged[T]) on() []T {
	if p.byLoad {
		p.sort()
		some, _ := on(p.page, p.kept)
		return some
	}
	return p.kept
}

// on returns what is on a page, and how many there are.
func on[T any](p page, all []T) (some []T, total int) {
	if p.limit == 0 {
		return all, len(all)
	}
	from := min(p.offset, len(all))
	return all[from:min(from+p.limit, len(all))], len(all)
}

// TableSum is what the tablets of a table tell, added up.
type TableSum struct {
	Table string `json:"table"`
	Sum
}

// Sum is what tablets tell, added up.
type Sum struct {
	Tablets int `json:"tablets"`
	// Unserved are the tablets that no server serves at the moment.
	Unserved int `json:"unserved"`
	// Bytes are those of SSTables and memtables.
	Bytes                int64   `json:"bytes"`
	RowsReadPerSecond    float64 `json:"rows_read_per_second"`
	RowsWrittenPerSecond float64 `json:"rows_written_per_second"`
}

// add adds a tablet.
func (s *Sum) add(t *tablet.Info) {
	s.Tablets++
	if t.Server == "" {
		s.Unserved++
	}
	s.Bytes += t.Bytes
	s.RowsReadPerSecond += t.Load.RowsRead
	s.RowsWrittenPerSecond += t.Load.RowsWritten
}

// InstanceSum is what the tablets of an instance's tables tell, added up.
type InstanceSum struct {
	Instance string `json:"instance"`
	Tables   int    `json:"tables"`
	Sum
}

// TableList is the answer of GET /admin/tables.
type TableList struct {
	Tables []TableSum `json:"tables"`
	// Total is how many there are, of which a page has some.
	Total int `json:"total"`
	// Instances are those of all the tables. METADATA is of none.
	Instances []InstanceSum `json:"instances"`
}

// TableNameList is the answer of GET /admin/tables?view=names.
type TableNameList struct {
	Tables []TableName `json:"tables"`
}

// A TableName is that of a table.
type TableName struct {
	Table string `json:"table"`
}

// listTables shows one table, or all that the caller may know of.
func (a *Admin) listTables(q *request) (any, error) {
	switch view := q.URL.Query().Get("view"); view {
	case "":
	case "names":
		return q.tableNames()
	default:
		return nil, fault.New(fault.Invalid, "view must be names, or be left out")
	}
	page, err := pageOf(q)
	if err != nil {
		return nil, err
	}
	out := TableList{Tables: []TableSum{}, Instances: []InstanceSum{}}
	some := paged[TableSum]{page: page, busy: func(s *TableSum) busy { return busy{s.RowsReadPerSecond + s.RowsWrittenPerSecond, s.Bytes} }}
	var table TableSum
	var of *InstanceSum // nil of METADATA
	end := func() {
		if table.Tablets > 0 {
			some.add(&table)
		}
	}
	at := map[string]int{}
	err = q.eachTablet(lookTime, func(t *tablet.Info) {
		if t.Table != table.Table {
			end()
			table, of = TableSum{Table: t.Table}, nil
			if instance, _, ok := strings.Cut(t.Table, "/tables/"); ok {
				i, ok := at[instance]
				if !ok {
					i = len(out.Instances)
					at[instance] = i
					out.Instances = append(out.Instances, InstanceSum{Instance: instance})
				}
				of = &out.Instances[i]
				of.Tables++
			}
		}
		table.add(t)
		if of != nil {
			of.add(t)
		}
	})
	if err != nil {
		return nil, err
	}
	end()
	out.Total = some.total
	out.Tables = append(out.Tables, some.on()...)
	return out, nil
}

// tableNames returns the names of all tables that the caller may know of. Unlike their sums
// they cost nothing for each tablet.
func (q *request) tableNames() (any, error) {
	out := TableNameList{Tables: []TableName{}}
	for _, name := range q.op.TableNames() {
		sees, err := q.sees(name)
		if err != nil {
			return nil, err
		}
		if sees {
			out.Tables = append(out.Tables, TableName{name})
		}
	}
	return out, nil
}
