package admin

import (
	"context"
	"strconv"
	"strings"

	"github.com/trestledb/trestle/engine/fault"
)

// dropOrphans deletes the records of tables that can no longer be undeleted, and
// the policies of materialized views that are deleted and of backups that have expired. No request finds them any more: their
// keys have ids that are not used again.
func (a *Admin) dropOrphans(ctx context.Context) error {
	type record struct {
		key     string
		version uint64
		id      uint64 // of the table or backup
	}
	var records []record
	for _, prefix := range []string{policyPrefix, views.prefix, bundles.prefix, schedulePrefix} {
		err := a.b.ListRecords(ctx, prefix, func(key string, _ []byte, version uint64) error {
			if id, ok := ownerOf(strings.TrimPrefix(key, prefix)); ok {
				records = append(records, record{key, version, id})
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	// After the records: whatever they are about was there before them.
	there := map[uint64]bool{}
	tables, err := a.b.TableIDs(ctx)
	if err != nil {
		return err
	}
	for _, id := range tables {
		there[id] = true
	}
	backups, err := a.b.ListBackups(ctx, "")
	if err != nil {
		return err
	}
	for _, b := range backups {
		there[b.ID] = true
	}
	for _, r := range records {
		if there[r.id] {
			continue
		}
		if err := a.b.DeleteRecord(ctx, r.key, r.version); err != nil && fault.KindOf(err) != fault.Aborted {
			return err
		}
	}
	return nil
}

// ownerOf returns the id of the table, materialized view or backup that a record's key,
// without its prefix, is about; false if it is about none of them.
func ownerOf(key string) (uint64, bool) {
	name, rest, ok := strings.Cut(key, "#")
	if !ok || tableForm.split(name) == nil && backupForm.split(name) == nil && materializedViewForm.split(name) == nil {
		return 0, false
	}
	digits, _, _ := strings.Cut(rest, "/")
	id, err := strconv.ParseUint(digits, 10, 64)
	return id, err == nil
}
