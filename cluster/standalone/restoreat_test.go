package standalone

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/master"
	"github.com/trestledb/trestle/engine/datadir/datadirtest"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// rowValues writes down the rows of a table with one cell each.
type rowValues struct {
	row  string
	list []string
}

func (v *rowValues) StartRow(key []byte)   { v.row = string(key) }
func (v *rowValues) Cell(c *row.Cell)      { v.list = append(v.list, v.row+"="+string(c.Value)) }
func (v *rowValues) EndRow() (bool, error) { return false, nil }
func (v *rowValues) Scanned([]byte)        {}
func (v *rowValues) Flush() error          { return nil }

// TestRestoreAtCrash: after a crash at any point of a restore to a time the table is there
// as it was, or is not there. What the restore had made is removed, and it can be done
// again.
func TestRestoreAtCrash(t *testing.T) {
	ctx := t.Context()
	fs := datadirtest.NewCrashableMem()
	open := func(fs vfs.FS) *Server {
		t.Helper()
		s, err := Open(ctx, Options{Dir: "d", FS: fs, NoReserve: true, Master: master.Options{Purge: 20 * time.Millisecond}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open(fs)
	if _, err := s.CreateTable(ctx, &schema.Table{Name: table, Granularity: 1000, Families: map[string]schema.Family{"f": {Name: "f"}},
		Stream: &schema.Stream{Life: 1, Retention: time.Hour, Since: time.Now()}}, nil); err != nil {
		t.Fatal(err)
	}
	write := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			if err := s.MutateRow(ctx, table, &row.Entry{Key: fmt.Appendf(nil, "r%04d", i), Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Timestamp: 1000, Value: fmt.Append(nil, i)}}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	read := func(s *Server, name string) string {
		t.Helper()
		var v rowValues
		if _, err := s.ReadRows(ctx, &scan.Request{Table: name, Ranges: []row.Range{row.All}}, &v); err != nil {
			t.Fatal(err)
		}
		return strings.Join(v.list, " ")
	}
	write(0, 20)
	b, err := s.CreateBackup(ctx, table, &schema.Backup{Name: "b", ExpireTime: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	write(20, 60)
	at, want := time.Now(), read(s, table)
	time.Sleep(time.Millisecond)
	write(10, 15)
	write(60, 70)
	restore := func(s *Server, name string) error {
		_, err := s.RestoreTableAt(ctx, b.Name, name, at, func(*schema.Table) error { return nil })
		return err
	}
	// How long it takes says when to crash.
	begin := time.Now()
	if err := restore(s, table+"-whole"); err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	if got := read(s, table+"-whole"); got != want {
		t.Fatalf("restored\n%s\nwanted\n%s", got, want)
	}
	// The first one may take ten times as long as the next: those that crash are timed too, and
	// there are more of them until a crash was within one.
	const crashes = 12
	left, there, made := 0, 0, 0
	for i := 0; i < crashes || left == 0 && i < 10*crashes; i++ {
		made++
		to := fmt.Sprint(table, "-", i)
		done, ended := make(chan error, 1), time.Time{}
		begin := time.Now()
		go func() {
			err := restore(s, to)
			ended = time.Now()
			done <- err
		}()
		time.Sleep(took * time.Duration(i%crashes) / (crashes - 2))
		disk := fs.CrashClone(vfs.CrashCloneCfg{})
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		took = min(took, ended.Sub(begin))
		crashed := open(disk)
		staged := func() (n int) {
			t.Helper()
			err := catalog.Names(ctx, crashed.Lock(), func(_ lock.Item, entries catalog.Name) error {
				for _, e := range entries {
					if catalog.IsStaged(e.Name) {
						n++
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			all, err := catalog.Backups(ctx, crashed.Lock(), "")
			if err != nil {
				t.Fatal(err)
			}
			return n + len(all) - 1
		}
		left += staged()
		for begin := time.Now(); staged() > 0; time.Sleep(5 * time.Millisecond) {
			if time.Since(begin) > time.Minute {
				t.Fatalf("crash %d: what the restore has made stays", i)
			}
		}
		_, err := crashed.Table(ctx, to)
		switch fault.KindOf(err) {
		case fault.NotFound:
			if err := restore(crashed, to); err != nil {
				t.Fatalf("crash %d: once more: %v", i, err)
			}
		default:
			there++
			if err != nil {
				t.Fatal(err)
			}
		}
		if got := read(crashed, to); got != want {
			t.Errorf("crash %d: restored\n%s\nwanted\n%s", i, got, want)
		}
		if err := crashed.Close(context.WithoutCancel(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(context.WithoutCancel(ctx)); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d crashes in %v: %d tables and backups were left, %d tables were there", made, took, left, there)
	if left == 0 || there == made {
		t.Error("no crash was within a restore")
	}
}
