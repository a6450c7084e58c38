package metadata

import (
	"fmt"
	"log/slog"
	"strconv"

	"github.com/trestledb/trestle/engine/row"
)

// String writes an id as tools, logs and errors do, and as tools read it: in
// hexadecimal.
func (id TabletID) String() string { return strconv.FormatUint(uint64(id), 16) }

// LogValue implements slog.LogValuer.
func (id TabletID) LogValue() slog.Value { return slog.StringValue(id.String()) }

// A TabletName is what an operator is told of which tablet is meant.
type TabletName struct {
	Table      string // full name
	Tablet     TabletID
	Start, End []byte // of its rows; not to be changed
}

// Name returns the name of the tablet that r describes, which is of a table of
// that name.
func (r *Row) Name(table string) TabletName {
	return TabletName{Table: table, Tablet: r.Tablet, Start: r.Start, End: r.End}
}

// String writes the name for errors and tools.
func (n TabletName) String() string {
	return fmt.Sprintf("tablet %v of %s, rows %s", n.Tablet, n.Table, n.rows())
}

func (n TabletName) rows() string {
	return "[" + row.Escape(n.Start) + ", " + row.Escape(n.End) + ")"
}

// LogValue implements slog.LogValuer, with the parts of String.
func (n TabletName) LogValue() slog.Value {
	return slog.GroupValue(slog.String("id", n.Tablet.String()), slog.String("table", n.Table), slog.String("rows", n.rows()))
}

// A ServerName is what an operator is told of which tablet server is meant:
// another incarnation of the same name is another process.
type ServerName struct {
	Name        string
	Incarnation uint64
}

// Owner returns the server of an assignment; the zero value if it has none.
func (a *Assignment) Owner() ServerName { return ServerName{a.Server, a.Incarnation} }

// String writes the name for errors and tools.
func (n ServerName) String() string {
	return fmt.Sprintf("%s (incarnation %d)", n.Name, n.Incarnation)
}

// LogValue implements slog.LogValuer, with the parts of String.
func (n ServerName) LogValue() slog.Value {
	return slog.GroupValue(slog.String("name", n.Name), slog.Uint64("incarnation", n.Incarnation))
}
