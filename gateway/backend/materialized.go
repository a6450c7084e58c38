package backend

import (
	"context"
	"strings"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/schema"
)

// visible matches the families that are not matview.Hidden.
var visible = &filter.Node{Op: filter.FamilyRegex, Pattern: []byte("[^~].*"), Kept: true}

// IsMaterializedView tells whether a table's name is that of a materialized view.
func IsMaterializedView(table string) bool { return strings.Contains(table, "/materializedViews/") }

// Visible returns client, which may be nil, for a row of a materialized view without what
// is kept in it beside its columns. No file of the hidden families is read.
func Visible(client *filter.Node) *filter.Node {
	if client == nil {
		return visible
	}
	return &filter.Node{Op: filter.Chain, Children: []*filter.Node{visible, client}}
}

// ViewsOf returns b as one that keeps materialized views. If it is none, there are no views
// and none can be made.
func ViewsOf(b Backend) MaterializedViews {
	if v, ok := b.(MaterializedViews); ok {
		return v
	}
	return noViews{}
}

type noViews struct{}

var errNoViews = fault.New(fault.Unimplemented, "This server does not keep materialized views")

func (noViews) CreateView(context.Context, *schema.View, func(*schema.Table)) (*schema.Table, error) {
	return nil, errNoViews
}

func (noViews) UpdateView(context.Context, string, func(*schema.Table) error) (*schema.Table, error) {
	return nil, errNoViews
}

func (noViews) DeleteView(context.Context, string) error                   { return errNoViews }
func (noViews) ListViews(context.Context, string) ([]*schema.Table, error) { return nil, nil }
func (noViews) WaitView(context.Context, string) error                     { return errNoViews }
func (noViews) ViewStatus(context.Context, string) (*ViewStatus, error)    { return nil, errNoViews }

// Shown returns the schema of a table as clients see it: that of a materialized view without
// the hidden families, any other as it is.
func Shown(t *schema.Table) *schema.Table {
	if t.View == nil {
		return t
	}
	shown := *t
	shown.Families = make(map[string]schema.Family, len(t.Families))
	for n, f := range t.Families {
		if !matview.Hidden(n) {
			shown.Families[n] = f
		}
	}
	return &shown
}
