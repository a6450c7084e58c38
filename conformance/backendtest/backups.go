package backendtest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
	"github.com/trestledb/trestle/engine/schema"
)

// backupName is the name of a backup, or of a snapshot.
func backupName(id string) string { return parent + "/clusters/c/backups/" + id }

func asItIs(*schema.Table) error { return nil }

var backupTests = []test{
	{"HoldsAnInstant", func(s *suite) {
		in := newTable("t", 1000, "f", "g", "n=sum")
		in.Families["f"] = schema.Family{Name: "f", GC: &schema.GCRule{MaxVersions: 3}, Extra: []byte("type")}
		in.Extra, in.DeletionProtection = []byte("gateway's own"), true
		source, err := s.CreateTable(s.ctx, in, [][]byte{[]byte("k"), []byte("p")})
		s.ok(err)
		t := in.Name
		for _, k := range []string{"a", "k", "m", "z"} {
			s.put(t, k, set("f", "q", 1000, "old "+k), set("g", "", 2000, ""), row.Mutation{Op: row.AddToCell, Family: "n", Qualifier: []byte("q"),
				Timestamp: 1000, Input: row.Input{Kind: row.IntInput, Int: 5}})
		}
		s.put(t, "z", deleteFamily("g"))
		s.ok(s.DropRowRange(s.ctx, t, []byte("m")))
		before := s.read(scanAll(t))
		made, err := s.CreateBackup(s.ctx, t, &schema.Backup{Name: backupName("b"), Extra: []byte("of the gateway")})
		s.ok(err)
		if made.Name != backupName("b") || made.ID == 0 || made.Bytes == 0 || string(made.Extra) != "of the gateway" ||
			made.Table.ID != source.ID || made.Table.Name != t || made.EndTime.Before(made.StartTime) || made.CreateTime.IsZero() {
			s.Errorf("backup is %+v", made)
		}
		// What comes later is not in it, and nothing of it goes with the table.
		s.put(t, "a", deleteRow())
		s.put(t, "b", set("f", "q", 1000, "later"))
		_, err = s.UpdateTable(s.ctx, t, func(t *schema.Table) error {
			delete(t.Families, "g")
			t.DeletionProtection = false
			return nil
		})
		s.ok(err)
		s.ok(s.DropRowRange(s.ctx, t, nil))
		s.ok(s.DeleteTable(s.ctx, t))
		for _, id := range []string{"u", "t"} {
			to, other := parent+"/tables/"+id, "projects/q/instances/j/tables/"+id
			for _, name := range []string{to, other} {
				got, err := s.RestoreTable(s.ctx, backupName("b"), name, func(t *schema.Table) error {
					t.Extra, t.DeletionProtection = []byte("another"), false
					return nil
				})
				s.ok(err)
				if got.Name != name || got.ID == source.ID || len(got.Families) != 3 || got.Families["f"].GC.MaxVersions != 3 ||
					string(got.Families["f"].Extra) != "type" || string(got.Extra) != "another" || got.DeletionProtection || !got.DeleteTime.IsZero() {
					s.Errorf("restored table is %+v", got)
				}
				s.same(s.read(scanAll(name)), before)
			}
		}
		// The restored tables are their own.
		s.put(parent+"/tables/u", "a", set("f", "q", 5000, "new"), row.Mutation{Op: row.AddToCell, Family: "n", Qualifier: []byte("q"),
			Timestamp: 1000, Input: row.Input{Kind: row.IntInput, Int: 2}})
		s.ok(s.DropRowRange(s.ctx, parent+"/tables/u", []byte("z")))
		s.same(s.read(scanAll(parent+"/tables/t")), before)
		s.ok(s.DeleteBackup(s.ctx, backupName("b")))
		s.same(s.read(scanAll(parent+"/tables/t")), before)
		_, err = s.RestoreTable(s.ctx, backupName("b"), parent+"/tables/v", asItIs)
		s.fails(err, fault.NotFound)
	}},
	{"Names", func(s *suite) {
		t := s.create("t", "f")
		want := func(prefix string, ids ...string) {
			s.Helper()
			list, err := s.ListBackups(s.ctx, prefix)
			s.ok(err)
			var got []string
			for _, b := range list {
				got = append(got, b.Name)
			}
			if fmt.Sprint(got) != fmt.Sprint(ids) {
				s.Errorf("backups below %q are %q, want %q", prefix, got, ids)
			}
		}
		_, err := s.CreateBackup(s.ctx, parent+"/tables/none", &schema.Backup{Name: backupName("b")})
		s.fails(err, fault.NotFound)
		for _, id := range []string{"b2", "b1"} {
			_, err = s.CreateBackup(s.ctx, t, &schema.Backup{Name: backupName(id)})
			s.ok(err)
		}
		_, err = s.CreateBackup(s.ctx, t, &schema.Backup{Name: backupName("b1")})
		s.fails(err, fault.AlreadyExists)
		_, err = s.CopyBackup(s.ctx, backupName("b1"), &schema.Backup{Name: backupName("b2")})
		s.fails(err, fault.AlreadyExists)
		_, err = s.CopyBackup(s.ctx, backupName("none"), &schema.Backup{Name: backupName("c")})
		s.fails(err, fault.NotFound)
		_, err = s.RestoreTable(s.ctx, backupName("b1"), t, asItIs)
		s.fails(err, fault.AlreadyExists)
		_, err = s.RestoreTable(s.ctx, backupName("none"), parent+"/tables/u", asItIs)
		s.fails(err, fault.NotFound)
		mine := errors.New("mine")
		if _, err = s.RestoreTable(s.ctx, backupName("b1"), parent+"/tables/u", func(*schema.Table) error { return mine }); !errors.Is(err, mine) {
			s.Errorf("change's error came back as %v", err)
		}
		want(parent+"/clusters/", backupName("b1"), backupName("b2"))
		want(parent + "/clusters/c/snapshots/")
		s.fails(s.DeleteBackup(s.ctx, backupName("none")), fault.NotFound)
		s.ok(s.DeleteBackup(s.ctx, backupName("b1")))
		s.fails(s.DeleteBackup(s.ctx, backupName("b1")), fault.NotFound)
		_, err = s.Backup(s.ctx, backupName("b1"))
		s.fails(err, fault.NotFound)
		_, err = s.UpdateBackup(s.ctx, backupName("b1"), func(*schema.Backup) error { return nil })
		s.fails(err, fault.NotFound)
		want("", backupName("b2"))
	}},
	{"CopyStandsAlone", func(s *suite) {
		t := s.create("t", "f")
		s.put(t, "r", set("f", "q", 1000, "v"))
		b, err := s.CreateBackup(s.ctx, t, &schema.Backup{Name: backupName("b")})
		s.ok(err)
		c, err := s.CopyBackup(s.ctx, backupName("b"), &schema.Backup{Name: "projects/q/instances/j/clusters/d/backups/c", Extra: []byte("copy")})
		s.ok(err)
		if c.ID == b.ID || !c.StartTime.Equal(b.StartTime) || !c.EndTime.Equal(b.EndTime) || c.Bytes != b.Bytes || c.CreateTime.Before(b.CreateTime) ||
			string(c.Extra) != "copy" || c.Table.Name != t {
			s.Errorf("copy is %+v of %+v", c, b)
		}
		s.ok(s.DeleteBackup(s.ctx, b.Name))
		s.ok(s.DropRowRange(s.ctx, t, nil))
		_, err = s.RestoreTable(s.ctx, c.Name, parent+"/tables/u", asItIs)
		s.ok(err)
		s.want(parent+"/tables/u", "r f:q@1000=v")
	}},
	{"UpdateAndExpire", func(s *suite) {
		t := s.create("t", "f")
		soon := time.Now().Add(time.Hour)
		b, err := s.CreateBackup(s.ctx, t, &schema.Backup{Name: backupName("b"), ExpireTime: soon})
		s.ok(err)
		if !b.ExpireTime.Equal(soon) {
			s.Errorf("expires at %v, not %v", b.ExpireTime, soon)
		}
		mine := errors.New("mine")
		if _, err := s.UpdateBackup(s.ctx, b.Name, func(b *schema.Backup) error { b.ExpireTime = time.Time{}; return mine }); !errors.Is(err, mine) {
			s.Errorf("change's error came back as %v", err)
		}
		b, err = s.UpdateBackup(s.ctx, b.Name, func(b *schema.Backup) error {
			b.ExpireTime, b.Extra = soon.Add(time.Hour), []byte("new")
			return nil
		})
		s.ok(err)
		got, err := s.Backup(s.ctx, b.Name)
		s.ok(err)
		if !got.ExpireTime.Equal(soon.Add(time.Hour)) || string(got.Extra) != "new" || got.Table.Name != t {
			s.Errorf("updated backup is %+v", got)
		}
		_, err = s.UpdateBackup(s.ctx, b.Name, func(b *schema.Backup) error { b.ExpireTime = b.CreateTime; return nil })
		s.ok(err)
		_, err = s.Backup(s.ctx, b.Name)
		s.fails(err, fault.NotFound)
		s.fails(s.DeleteBackup(s.ctx, b.Name), fault.NotFound)
		_, err = s.RestoreTable(s.ctx, b.Name, parent+"/tables/u", asItIs)
		s.fails(err, fault.NotFound)
		list, err := s.ListBackups(s.ctx, "")
		s.ok(err)
		if len(list) != 0 {
			s.Errorf("an expired backup is listed")
		}
		// The name is free.
		_, err = s.CreateBackup(s.ctx, t, &schema.Backup{Name: b.Name})
		s.ok(err)
	}},
	// Writers write the same number to two rows, one after the other. In no
	// backup may the second be ahead of the first.
	{"CutsAllRowsAtOneInstant", func(s *suite) {
		var splits [][]byte
		for i := range 40 {
			splits = append(splits, fmt.Appendf(nil, "m%02d", i))
		}
		t := s.createTable("t", 1000, splits, "f")
		var stop atomic.Bool
		var writers sync.WaitGroup
		for w := range 4 {
			order := []string{"a", "z"}
			if w%2 == 0 {
				order = []string{"z", "a"}
			}
			writers.Go(func() {
				for i := 1; !stop.Load(); i++ {
					for _, k := range order {
						if err := s.try(t, fmt.Sprint(k, w), set("f", "q", int64(i)*1000, "v")); err != nil {
							s.Errorf("write: %v", err)
							return
						}
					}
				}
			})
		}
		for i := range 8 {
			time.Sleep(2 * time.Millisecond)
			name := backupName(fmt.Sprint("b", i))
			_, err := s.CreateBackup(s.ctx, t, &schema.Backup{Name: name})
			s.ok(err)
			to := fmt.Sprint(parent, "/tables/u", i)
			_, err = s.RestoreTable(s.ctx, name, to, asItIs)
			s.ok(err)
			last := map[string]int64{}
			w := &Collector{}
			_, err = s.ReadRows(s.ctx, scanAll(to), w)
			s.ok(err)
			for _, r := range w.Rows {
				last[r.Key] = r.Cells[0].Timestamp / 1000
				if int64(len(r.Cells)) != last[r.Key] {
					s.Errorf("%s has %d cells, the newest of %d", r.Key, len(r.Cells), last[r.Key])
				}
			}
			for w := range 4 {
				first, second := last[fmt.Sprint("a", w)], last[fmt.Sprint("z", w)]
				if w%2 == 0 {
					first, second = second, first
				}
				if second > first || first > second+1 {
					s.Errorf("backup %d has write %d of one row and %d of the one before", i, second, first)
				}
			}
		}
		stop.Store(true)
		writers.Wait()
	}},
}

func scanAll(table string) *scan.Request {
	return &scan.Request{Table: table, Ranges: []row.Range{row.All}}
}

func (s *suite) same(got, want string) {
	s.Helper()
	if got != want {
		s.Fatalf("got:\n%swant:\n%s", got, want)
	}
}
