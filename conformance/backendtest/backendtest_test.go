package backendtest

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/backend"
)

func TestModel(t *testing.T) {
	Run(t, func(testing.TB) backend.Backend { return model.New(model.Options{}) })
}

func TestModelReopened(t *testing.T) {
	open := map[string]backend.Backend{}
	Reopened(t, func(dir string) (backend.Backend, func(), error) {
		if open[dir] == nil {
			open[dir] = model.New(model.Options{})
		}
		return open[dir], func() {}, nil
	})
}

// A broken Backend does one thing wrong, so that the suite can be seen to fail.
type broken struct {
	backend.Backend
	how string
}

var defects = []string{
	"family deletes are ignored", "entries are not atomic", "limits are ignored", "reversed scans are not",
	"filters are ignored", "times are rounded", "predicates are inverted", "increments are done twice",
	"drops are ignored", "failing updates are stored", "batches stop at a failure", "records ignore versions",
}

func (b *broken) MutateRow(ctx context.Context, table string, e *row.Entry) error {
	switch b.how {
	case "family deletes are ignored":
		c := *e
		c.Mutations = nil
		for _, m := range e.Mutations {
			if m.Op != row.DeleteFamily {
				c.Mutations = append(c.Mutations, m)
			}
		}
		e = &c
	case "entries are not atomic":
		if len(e.Mutations) > 100 {
			break // the model copies the row for each
		}
		for i := range e.Mutations {
			if err := b.Backend.MutateRow(ctx, table, &row.Entry{Key: e.Key, Mutations: e.Mutations[i : i+1], Token: e.Token}); err != nil {
				return err
			}
		}
		return nil
	case "times are rounded":
		c := *e
		c.Mutations = append([]row.Mutation(nil), e.Mutations...)
		for i := range c.Mutations {
			c.Mutations[i].Truncate = true
		}
		e = &c
	}
	return b.Backend.MutateRow(ctx, table, e)
}

func (b *broken) MutateRows(ctx context.Context, table string, es []row.Entry, done func(int, error)) error {
	failed := false
	return b.Backend.MutateRows(ctx, table, es, func(i int, err error) {
		failed = failed || err != nil
		if b.how == "batches stop at a failure" && failed {
			return
		}
		done(i, err)
	})
}

func (b *broken) ReadRows(ctx context.Context, req *scan.Request, w scan.Writer) (scan.Stats, error) {
	c := *req
	switch b.how {
	case "limits are ignored":
		c.Limit = 0
	case "reversed scans are not":
		c.Reversed = false
	case "filters are ignored":
		c.Filter = nil
	}
	return b.Backend.ReadRows(ctx, &c, w)
}

func (b *broken) CheckAndMutateRow(ctx context.Context, table string, key []byte, p *filter.Node, then, otherwise []row.Mutation) (bool, error) {
	matched, err := b.Backend.CheckAndMutateRow(ctx, table, key, p, then, otherwise)
	return matched != (b.how == "predicates are inverted"), err
}

func (b *broken) ReadModifyWriteRow(ctx context.Context, table string, key []byte, rules []row.Rule) ([]row.Cell, error) {
	if b.how == "increments are done twice" {
		if _, err := b.Backend.ReadModifyWriteRow(ctx, table, key, rules); err != nil {
			return nil, err
		}
	}
	return b.Backend.ReadModifyWriteRow(ctx, table, key, rules)
}

func (b *broken) DropRowRange(ctx context.Context, name string, prefix []byte) error {
	if b.how == "drops are ignored" {
		return ctx.Err()
	}
	return b.Backend.DropRowRange(ctx, name, prefix)
}

func (b *broken) UpdateTable(ctx context.Context, name string, change func(*schema.Table) error) (*schema.Table, error) {
	if b.how == "failing updates are stored" {
		var err error
		t, uerr := b.Backend.UpdateTable(ctx, name, func(t *schema.Table) error { err = change(t); return nil })
		if err != nil {
			return nil, err
		}
		return t, uerr
	}
	return b.Backend.UpdateTable(ctx, name, change)
}

func (b *broken) PutRecord(ctx context.Context, key string, value []byte, version uint64) (uint64, error) {
	if b.how == "records ignore versions" {
		_, version, _ = b.GetRecord(ctx, key)
	}
	return b.Backend.PutRecord(ctx, key, value, version)
}

// TestSuiteFindsDefects runs the suite and the random comparison on broken
// Backends, each in a process of its own, and expects both to fail.
func TestSuiteFindsDefects(t *testing.T) {
	if how := os.Getenv("BACKENDTEST_DEFECT"); how != "" {
		open := func(testing.TB) backend.Backend {
			return &broken{Backend: model.New(model.Options{}), how: how}
		}
		t.Run("Suite", func(t *testing.T) { Run(t, open) })
		t.Run("OnlyRandom", func(t *testing.T) { Random(t, open) })
		return
	}
	if testing.Short() {
		t.Skip("runs the suite a dozen times")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range defects {
		t.Run(strings.ReplaceAll(how, " ", "-"), func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestSuiteFindsDefects$", "-rapid.nofailfile", "-rapid.shrinktime=100ms")
			cmd.Env = append(os.Environ(), "BACKENDTEST_DEFECT="+how)
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("the suite passes")
			}
			found := false
			for _, group := range []string{"Tables", "Read", "Filter", "Mutate", "CheckAndMutate", "ReadModifyWrite", "Records"} {
				found = found || strings.Contains(string(out), "--- FAIL: TestSuiteFindsDefects/Suite/"+group+" ")
			}
			if !found {
				t.Errorf("no written test finds it:\n%s", out)
			}
			if !strings.Contains(string(out), "--- FAIL: TestSuiteFindsDefects/OnlyRandom") {
				t.Errorf("the random comparison does not find it:\n%s", out)
			}
		})
	}
}
