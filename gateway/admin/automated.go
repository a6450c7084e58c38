package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// schedulePrefix begins the records that say when a table is backed up next.
const schedulePrefix = "schedules/"

// A schedule is the record of a table with automated backups.
type schedule struct {
	// Next is when the next backup is due. Its id is made of it, so that only one
	// is made, also if it is made again after a crash.
	Next time.Time `json:"next"`
}

// maintain does what is due in the background.
func (a *Admin) maintain(ctx context.Context) {
	if err := a.backUp(ctx); err != nil && ctx.Err() == nil {
		a.o.Log.LogAttrs(ctx, slog.LevelWarn, "automated backups not made", slog.String("error", err.Error()))
	}
	if !a.orphans.due(a.o.Now()) {
		return
	}
	if err := a.dropOrphans(ctx); err != nil && ctx.Err() == nil {
		a.o.Log.LogAttrs(ctx, slog.LevelWarn, "records of what is gone not forgotten", slog.String("error", err.Error()))
	}
}

// backUp makes the automated backups that are due. It goes on after a table
// that failed, whose backup stays due.
func (a *Admin) backUp(ctx context.Context) error {
	var names []string
	err := a.b.ListRecords(ctx, instancePrefix, func(key string, _ []byte, _ uint64) error {
		names = append(names, strings.TrimPrefix(key, instancePrefix))
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range names {
		ts, err := a.b.ListTables(ctx, name)
		if err != nil {
			return err
		}
		for _, t := range ts {
			x, err := tableExtra(t)
			if err == nil && x.GetAutomatedBackupPolicy() != nil && !x.GetAutomatedBackupPolicy().GetDisabled() {
				err = a.backUpTable(ctx, name, t, x.GetAutomatedBackupPolicy())
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				a.o.Log.LogAttrs(ctx, slog.LevelWarn, "automated backup failed", slog.String("table", t.Name), slog.String("error", err.Error()))
			}
		}
	}
	return nil
}

// backUpTable makes the backup of t if it is due.
func (a *Admin) backUpTable(ctx context.Context, in string, t *schema.Table, p *adminpb.Table_AutomatedBackupPolicy) error {
	now := a.o.Now()
	key := fmt.Sprintf("%s%s#%d", schedulePrefix, t.Name, t.ID)
	var s schedule
	b, version, err := a.b.GetRecord(ctx, key)
	switch {
	case fault.KindOf(err) == fault.NotFound:
		// The first is due at once: a table with a new policy has no backup yet.
		s.Next = now
		if version, err = a.putSchedule(ctx, key, s, 0); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(b, &s); err != nil {
			return fault.New(fault.Corruption, "read schedule of %s: %w", t.Name, err)
		}
	}
	if now.Before(s.Next) {
		return nil
	}
	if err := a.makeAutomated(ctx, in, t, p, s.Next); err != nil {
		return err
	}
	if s.Next = s.Next.Add(p.GetFrequency().AsDuration()); !s.Next.After(now) {
		// Those that were missed while no server ran are not made up for.
		s.Next = now.Add(p.GetFrequency().AsDuration())
	}
	_, err = a.putSchedule(ctx, key, s, version)
	return err
}

func (a *Admin) putSchedule(ctx context.Context, key string, s schedule, version uint64) (uint64, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return 0, err
	}
	return a.b.PutRecord(ctx, key, b, version)
}

// makeAutomated makes the backup that was due at due in every cluster of the
// instance that the policy allows.
func (a *Admin) makeAutomated(ctx context.Context, in string, t *schema.Table, p *adminpb.Table_AutomatedBackupPolicy, due time.Time) error {
	i, err := a.readInstance(ctx, in)
	if err != nil || i == nil || i.deleting {
		return err
	}
	now := a.o.Now()
	var extra storedBackup
	if d := p.GetKeepHotDuration(); d != nil {
		extra.Hot, extra.HotToStandard = true, now.Add(d.AsDuration())
	}
	first := ""
	for _, id := range i.clusterIDs() {
		if l := p.GetLocations(); len(l) > 0 && !slices.Contains(l, i.clusters[id].GetLocation()) {
			continue
		}
		b := &schema.Backup{
			Name:  fmt.Sprintf("%s/clusters/%s/backups/auto-%s-%x", in, id, due.UTC().Format("20060102t150405"), t.ID),
			Table: t, StartTime: now, ExpireTime: now.Add(p.GetRetentionPeriod().AsDuration()), Extra: extra.encode(),
		}
		switch err := a.makeOne(ctx, first, b); fault.KindOf(err) {
		case fault.AlreadyExists: // a crash came before it was noted
			_, err := a.b.Backup(ctx, b.Name)
			if fault.KindOf(err) == fault.NotFound {
				// Its name alone is taken: it may yet fail, and stays due until it is there.
				err = fault.New(fault.Unavailable, "backup %s is being made by another server, or was when that ended", b.Name)
			}
			if err != nil {
				return err
			}
		case fault.NotFound: // the table or cluster was deleted
			continue
		default:
			if err != nil {
				return err
			}
			a.o.Log.LogAttrs(ctx, slog.LevelInfo, "automated backup made", slog.String("backup", b.Name), slog.String("table", t.Name))
		}
		first = b.Name
	}
	return nil
}

// makeOne makes an automated backup, as a copy of first if that is not empty.
func (a *Admin) makeOne(ctx context.Context, first string, b *schema.Backup) error {
	pb, err := a.creating(b)
	if err != nil {
		return err
	}
	if err := a.place(ctx, backupForm, "", b.Name, backupForm.split(b.Name), pb); err != nil {
		return err
	}
	defer a.unplace(b.Name)
	if first == "" {
		_, err = a.b.CreateBackup(ctx, b.Table.Name, b)
	} else {
		_, err = a.b.CopyBackup(ctx, first, b)
	}
	return err
}
