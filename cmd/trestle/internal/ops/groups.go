package ops

import (
	"context"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/engine/tablet"
)

// A Grouper is the part of an Operator that arranges the families of tables in
// locality groups.
type Grouper interface {
	Groups(ctx context.Context, table string) (name string, groups []tablet.GroupInfo, err error)
	CreateGroup(ctx context.Context, table string, g schema.Group) (*schema.Table, error)
	SetGroup(ctx context.Context, table, group string, change func(*schema.Group) error) (*schema.Table, error)
	DeleteGroup(ctx context.Context, table, group string) (*schema.Table, error)
	AssignFamilies(ctx context.Context, table, group string, families []string) (*schema.Table, error)
}

// Group is an tablet.GroupInfo in JSON.
type Group struct {
	// Name is empty for SSTables that were written when other families were in the
	// groups, until compactions have divided them.
	Name     string   `json:"name"`
	Families []string `json:"families"`
	// The settings as they were given; zero values stand for the server's.
	BlockBytes  int    `json:"block_bytes,omitempty"`
	Compression string `json:"compression,omitempty"`
	BloomBits   int    `json:"bloom_bits,omitempty"` // negative: no Bloom filter
	InMemory    bool   `json:"in_memory,omitempty"`
	// The sums over all tablets; Runs is the largest of any.
	Bytes         int64 `json:"bytes"`
	InMemoryBytes int64 `json:"in_memory_bytes"`
	Runs          int   `json:"runs"`
	Files         int   `json:"files"`
}

// Table is the answer of GET /admin/table.
type Table struct {
	Table  string  `json:"table"`
	Groups []Group `json:"groups"`
}

// GroupChange is the body of a request that changes a locality group. What it
// leaves out stays as it is.
type GroupChange struct {
	Table       string   `json:"table"`
	Group       string   `json:"group"`
	Families    []string `json:"families,omitempty"`
	BlockBytes  *int     `json:"block_bytes,omitempty"`
	Compression *string  `json:"compression,omitempty"`
	BloomBits   *int     `json:"bloom_bits,omitempty"`
	InMemory    *bool    `json:"in_memory,omitempty"`
}

// apply changes the settings of g.
func (c *GroupChange) apply(g *schema.Group) error {
	if c.BlockBytes != nil {
		g.BlockBytes = *c.BlockBytes
	}
	if c.Compression != nil {
		g.Compression = *c.Compression
	}
	if c.BloomBits != nil {
		g.BloomBits = *c.BloomBits
	}
	if c.InMemory != nil {
		g.InMemory = *c.InMemory
	}
	return nil
}

func (a *Admin) describeTable(q *request) (any, error) {
	table := q.URL.Query().Get("table")
	if table == "" {
		return nil, fault.New(fault.Invalid, "name a table")
	}
	table, err := q.table(table)
	if err != nil {
		return nil, err
	}
	return describeGroups(q.Context(), q.op, table)
}

func describeGroups(ctx context.Context, op Operator, table string) (any, error) {
	name, groups, err := op.Groups(ctx, table)
	if err != nil {
		return nil, err
	}
	out := Table{Table: name, Groups: []Group{}}
	for _, g := range groups {
		out.Groups = append(out.Groups, Group{
			Name: g.Name, Families: append([]string{}, g.Families...), BlockBytes: g.BlockBytes, Compression: g.Compression,
			BloomBits: g.BloomBits, InMemory: g.InMemory, Bytes: g.Bytes, InMemoryBytes: g.Resident, Runs: g.Runs, Files: g.Files,
		})
	}
	return out, nil
}

// changeGroup returns what makes a change of a locality group and describes the
// table after it.
func (a *Admin) changeGroup(change func(ctx context.Context, op Operator, c *GroupChange) error) func(*request) (any, error) {
	return func(q *request) (any, error) {
		var c GroupChange
		if err := q.decode(&c); err != nil {
			return nil, err
		}
		if c.Table == "" || c.Group == "" {
			return nil, fault.New(fault.Invalid, "name a table and a locality group")
		}
		q.caller.Note("group", c.Group)
		var err error
		if c.Table, err = q.table(c.Table); err != nil {
			return nil, err
		}
		if err := change(q.Context(), q.op, &c); err != nil {
			return nil, err
		}
		return describeGroups(q.Context(), q.op, c.Table)
	}
}

func createGroup(ctx context.Context, op Operator, c *GroupChange) error {
	g := schema.Group{Name: c.Group}
	if err := c.apply(&g); err != nil {
		return err
	}
	if _, err := op.CreateGroup(ctx, c.Table, g); err != nil || len(c.Families) == 0 {
		return err
	}
	return assign(ctx, op, c)
}

func setGroup(ctx context.Context, op Operator, c *GroupChange) error {
	_, err := op.SetGroup(ctx, c.Table, c.Group, c.apply)
	return err
}

func deleteGroup(ctx context.Context, op Operator, c *GroupChange) error {
	_, err := op.DeleteGroup(ctx, c.Table, c.Group)
	return err
}

func assign(ctx context.Context, op Operator, c *GroupChange) error {
	if len(c.Families) == 0 {
		return fault.New(fault.Invalid, "name the families")
	}
	_, err := op.AssignFamilies(ctx, c.Table, c.Group, c.Families)
	return err
}
