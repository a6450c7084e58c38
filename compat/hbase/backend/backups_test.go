package backend

import (
	"testing"
	"time"

	"github.com/trestledb/trestle/compat/hbase/server"
	"github.com/trestledb/trestle/engine/schema"
)

const backups = "projects/p/instances/i/clusters/c/backups/"

func backupOf(id string, expires time.Time) *schema.Backup {
	return &schema.Backup{Name: backups + id, ExpireTime: expires}
}

// backupKeys returns the keys of the records of backups.
func backupKeys(t testing.TB, b *Backend) (keys []string) {
	t.Helper()
	if err := b.records(t.Context(), prefixRange(backupRecord), func(k string, _ []byte, _ uint64) error { keys = append(keys, k); return nil }); err != nil {
		t.Fatal(err)
	}
	return keys
}

// TestExpiredBackupsGo: a sweep removes backups some time after they have expired, and their
// snapshots when no other backup has them.
func TestExpiredBackupsGo(t *testing.T) {
	b := open(t, startOurs(t))
	ctx := t.Context()
	table := made(t, b, "t")
	now := time.Now()
	later := now.Add(30 * 24 * time.Hour)
	for _, w := range []*schema.Backup{backupOf("stays", later), backupOf("source", later), backupOf("expires", now)} {
		if _, err := b.CreateBackup(ctx, table, w); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.CopyBackup(ctx, backups+"source", backupOf("copy", later)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.UpdateBackup(ctx, backups+"source", func(s *schema.Backup) error { s.ExpireTime = now; return nil }); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		at               time.Time
		records, inHBase int
	}{{now.Add(sweepEvery / 2), 4, 3}, {now.Add(2 * sweepEvery), 2, 2}, {later.Add(2 * sweepEvery), 0, 0}} {
		if err := b.sweepBackups(ctx, c.at); err != nil {
			t.Fatal(err)
		}
		if keys, names := backupKeys(t, b), snapshots(t, b); len(keys) != c.records || len(names) != c.inHBase {
			t.Errorf("after %v: records %q, snapshots %q", c.at.Sub(now), keys, names)
		}
		if c.records == 2 {
			if _, err := b.RestoreTable(ctx, backups+"copy", "projects/p/instances/i/tables/restored", func(*schema.Table) error { return nil }); err != nil {
				t.Error("restore of the copy:", err)
			}
		}
	}
}

// TestDeletedBackupsGo: the last of the backups that share a snapshot takes it along.
func TestDeletedBackupsGo(t *testing.T) {
	b := open(t, startOurs(t))
	ctx := t.Context()
	if _, err := b.CreateBackup(ctx, made(t, b, "t"), backupOf("source", time.Time{})); err != nil {
		t.Fatal(err)
	}
	if _, err := b.CopyBackup(ctx, backups+"source", backupOf("copy", time.Time{})); err != nil {
		t.Fatal(err)
	}
	for i, id := range []string{"source", "copy"} {
		if err := b.DeleteBackup(ctx, backups+id); err != nil {
			t.Fatal(err)
		}
		if keys, names := backupKeys(t, b), snapshots(t, b); len(keys) != 1-i || len(names) != 1-i {
			t.Errorf("without the %s: records %q, snapshots %q", id, keys, names)
		}
	}
}

// TestUnmadeBackupsGo: of a backup that fails when HBase has been asked for its snapshot, a
// sweep leaves nothing.
func TestUnmadeBackupsGo(t *testing.T) {
	quorum, _ := startChanged(t, changes{methods: map[string]server.Method{"IsSnapshotDone": server.Handle(refuse)}})
	b := open(t, quorum)
	ctx := t.Context()
	if _, err := b.CreateBackup(ctx, made(t, b, "t"), backupOf("b", time.Time{})); err == nil {
		t.Fatal("the backup was made")
	}
	if list, err := b.ListBackups(ctx, ""); err != nil || len(list) != 0 {
		t.Errorf("backups %v, %v", list, err)
	}
	for _, c := range []struct {
		in   time.Duration
		left int
	}{{0, 1}, {2 * sweepEvery, 0}} {
		if err := b.sweepBackups(ctx, time.Now().Add(c.in)); err != nil {
			t.Fatal(err)
		}
		if keys, names := backupKeys(t, b), snapshots(t, b); len(keys) != c.left || len(names) != c.left {
			t.Errorf("after %v: records %q, snapshots %q", c.in, keys, names)
		}
	}
}
