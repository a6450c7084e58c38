package analyze

import (
	"context"
	"strings"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/schema"
)

// catalog is a Catalog of tables by name in lower case.
type catalog map[string]*algebra.Table

func (c catalog) Table(_ context.Context, name string) (*algebra.Table, error) {
	if t := c[strings.ToLower(name)]; t != nil {
		return t, nil
	}
	return nil, fault.New(fault.NotFound, "no table %s", name)
}

func (c catalog) Tables(context.Context) ([]string, error) {
	var out []string
	for _, t := range c {
		out = append(out, t.Name)
	}
	return out, nil
}

func (c catalog) Type(_ context.Context, path []string) (*types.Type, error) {
	switch strings.Join(path, ".") {
	case "bundle.Song":
		return songType, nil
	case "bundle.Genre":
		return genreType, nil
	}
	return nil, fault.New(fault.NotFound, "no type")
}

var (
	genreType = &types.Type{Kind: types.Enum, Enumeration: &types.Enumeration{Bundle: "bundle", Name: "Genre", Values: []types.EnumValue{{Name: "POP", Number: 0}, {Name: "JAZZ", Number: 1}}}}
	songType  = &types.Type{Kind: types.Proto, Message: &types.Message{Bundle: "bundle", Name: "Song", Fields: []types.ProtoField{
		{Name: "title", Number: 1, Wire: types.WireBytes, HasPresence: true, Type: types.StringType},
		{Name: "tags", Number: 2, Wire: types.WireBytes, Repeated: true, Type: types.ArrayOf(types.StringType)},
		{Name: "genre", Number: 3, Wire: types.WireVarint, Type: genreType},
	}}}
)

func (c catalog) add(tables ...*algebra.Table) catalog {
	for _, t := range tables {
		c[strings.ToLower(t.Name)] = t
	}
	return c
}

// stored returns a stored table with the families, a name that ends in # being one of
// INT64.
func stored(name string, families ...string) *algebra.Table {
	t := &algebra.Table{Name: name, FullName: "projects/p/instances/i/tables/" + name, Schema: &schema.Table{}}
	t.Columns = append(t.Columns, algebra.TableColumn{Name: "_key", Type: types.BytesType, Kind: algebra.RowKeyColumn})
	for _, f := range families {
		v := types.BytesType
		if strings.HasSuffix(f, "#") {
			f, v = strings.TrimSuffix(f, "#"), types.Int64Type
		}
		t.Columns = append(t.Columns, algebra.TableColumn{Name: f, Type: types.MapOf(types.BytesType, v), Kind: algebra.FamilyColumn, Family: f})
	}
	return t
}

// inMemory returns a relation in memory without rows.
func inMemory(name string, cols ...types.Field) *algebra.Table {
	t := &algebra.Table{Name: name, Rows: [][]types.Value{}}
	for _, c := range cols {
		t.Columns = append(t.Columns, algebra.TableColumn{Name: c.Name, Type: c.Type})
	}
	return t
}

// testCatalog has the tables that the tests of this package query.
func testCatalog() catalog {
	field := func(name string, t *types.Type) types.Field { return types.Field{Name: name, Type: t} }
	keyed := stored("events", "f")
	keyed.Columns = append([]algebra.TableColumn{
		{Name: "_key", Type: types.BytesType, Kind: algebra.RowKeyColumn, Pseudo: true},
		{Name: "user", Type: types.StringType, Kind: algebra.KeyColumn, Field: 0},
		{Name: "day", Type: types.Int64Type, Kind: algebra.KeyColumn, Field: 1},
	}, keyed.Columns[1:]...)
	keyed.Key = &algebra.KeySchema{Fields: []algebra.KeyField{{Name: "user", Type: types.StringType}, {Name: "day", Type: types.Int64Type}}}
	view := func(name, query, definer string) *algebra.Table {
		return &algebra.Table{Name: name, View: &algebra.View{Query: query, Definer: definer}}
	}
	return catalog{}.add(
		stored("t", "cf1", "cf2", "counts#"),
		stored("my-table", "f"),
		keyed,
		inMemory("people", field("id", types.Int64Type), field("name", types.StringType), field("age", types.Int64Type), field("score", types.Float64Type), field("tags", types.ArrayOf(types.StringType)),
			field("home", types.StructOf(field("city", types.StringType), field("zip", types.Int64Type)))),
		inMemory("pets", field("id", types.Int64Type), field("owner", types.Int64Type), field("name", types.StringType)),
		view("keys", "SELECT _key, cf1['a'] AS a FROM t", "user:ann@example.com"),
		view("nested", "SELECT a FROM keys WHERE a IS NOT NULL", "user:bob@example.com"),
		view("circle", "SELECT * FROM circle2", ""),
		view("circle2", "SELECT * FROM circle", ""),
		view("broken", "SELECT nothing FROM t", ""),
		view("mine", "SELECT _key FROM t WHERE cf1['owner'] = CAST(VIEW_PARAMETERS()['user'] AS BYTES)", ""),
	)
}
