package ops

import (
	"strconv"
	"time"

	"github.com/trestledb/trestle/engine/fault"
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
	Table   string `json:"table"`
	Tablets int    `json:"tablets"`
	// Unserved are the tablets that no server serves at the moment.
	Unserved int `json:"unserved"`
	// Bytes are those of SSTables and memtables.
	Bytes                int64   `json:"bytes"`
	RowsReadPerSecond    float64 `json:"rows_read_per_second"`
	RowsWrittenPerSecond float64 `json:"rows_written_per_second"`
}

// TableList is the answer of GET /admin/tables.
type TableList struct {
	Tables []TableSum `json:"tables"`
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
	infos, err := q.tablets(lookTime)
	if err != nil {
		return nil, err
	}
	out := TableList{Tables: []TableSum{}}
	at := map[string]int{}
	for _, t := range infos {
		i, ok := at[t.Table]
		if !ok {
			i = len(out.Tables)
			at[t.Table] = i
			out.Tables = append(out.Tables, TableSum{Table: t.Table})
		}
		s := &out.Tables[i]
		s.Tablets++
		if t.Server == "" {
			s.Unserved++
		}
		s.Bytes += t.Bytes
		s.RowsReadPerSecond += t.Load.RowsRead
		s.RowsWrittenPerSecond += t.Load.RowsWritten
	}
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
