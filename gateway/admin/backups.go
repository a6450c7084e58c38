package admin

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/wire"
)

// The bounds of a backup's times, counted from its creation.
const (
	minBackupLife = 6 * time.Hour
	maxBackupLife = 90 * day
	minHot        = 24 * time.Hour
	// clockSlack is how far a bound may be missed: callers count from what their
	// clocks said before they sent the request.
	clockSlack = 5 * time.Minute
	// maxBackupID bounds the ids of backups and snapshots.
	maxBackupID = 50
	// maxBackupPage is the largest page of ListBackups.
	maxBackupPage = 1000
)

// backupAt returns the backup or snapshot called name, which came in field.
func (a *Admin) backupAt(ctx context.Context, field string, f form, name string) (*schema.Backup, error) {
	if _, err := a.parse(field, f, name); err != nil {
		return nil, err
	}
	b, err := a.b.Backup(ctx, name)
	if fault.KindOf(err) == fault.NotFound && a.isMaking(name) != nil {
		return nil, refuse(fault.FailedPrecondition, field, "%s is still being created: %s", f.kind, name)
	}
	return b, orMissing(err, field, f.kind, name)
}

// timeIn checks that t is between low and high after from, give or take
// clockSlack, and returns it in whole microseconds. A high of zero is no bound.
func timeIn(path string, t *timestamppb.Timestamp, from time.Time, low, high time.Duration) (time.Time, error) {
	field := leaf(path)
	if t == nil {
		return time.Time{}, refuse(fault.Invalid, path, "Error in field '%s' : Must be specified", field)
	}
	if err := t.CheckValid(); err != nil {
		return time.Time{}, refuse(fault.Invalid, path, "Error in field '%s' : %v", field, err)
	}
	v := t.AsTime().Truncate(time.Microsecond)
	if after := v.Sub(from); after < low-clockSlack || high != 0 && after > high+clockSlack {
		bounds := fmt.Sprintf("at least %v", low)
		if high != 0 {
			bounds = fmt.Sprintf("between %v and %v", low, high)
		}
		return time.Time{}, refuse(fault.Invalid, path, "Error in field '%s' : Must be %s after the creation of the backup at %s, but found %s",
			field, bounds, from.UTC().Format(time.RFC3339), v.UTC().Format(time.RFC3339))
	}
	return v, nil
}

// ImportedBackup returns a backup that is going to be made of an exported one,
// with the name that it is to have and its end. It takes that name until
// release is called: clients see it as being created. It is a STANDARD backup.
func (a *Admin) ImportedBackup(ctx context.Context, name string, source *schema.Backup, life time.Duration) (want *schema.Backup, release func(), err error) {
	ids, err := a.parse("backup", backupForm, name)
	if err != nil {
		return nil, nil, err
	}
	if err := newID("backup", "backups", ids[3], tableIDPattern, wire.TableID, 1, maxBackupID); err != nil {
		return nil, nil, err
	}
	now := a.o.Now()
	expire, err := timeIn("expire_time", timestamppb.New(now.Add(life)), now, minBackupLife, maxBackupLife)
	if err != nil {
		return nil, nil, err
	}
	want = &schema.Backup{Name: name, ExpireTime: expire, Extra: storedBackup{}.encode()}
	pending := want.Clone()
	pending.Table, pending.StartTime = source.Table, source.StartTime
	pb, err := a.creating(pending)
	if err != nil {
		return nil, nil, err
	}
	if err := a.place(ctx, backupForm, "backup", name, ids, pb); err != nil {
		return nil, nil, err
	}
	return want, func() { a.unplace(name) }, nil
}

// newBackup checks where a backup is to be, and returns its name.
func (s *tableServer) newBackup(req interface {
	GetParent() string
	GetBackupId() string
}) (ids []string, name string, err error) {
	if ids, err = s.parse("parent", clusterForm, req.GetParent()); err != nil {
		return nil, "", err
	}
	err = newID("backup_id", "backups", req.GetBackupId(), tableIDPattern, wire.TableID, 1, maxBackupID)
	return ids, req.GetParent() + "/backups/" + req.GetBackupId(), err
}

// CreateBackup implements T21.
func (s *tableServer) CreateBackup(ctx context.Context, req *adminpb.CreateBackupRequest) (*longrunningpb.Operation, error) {
	now := s.o.Now()
	ids, name, err := s.newBackup(req)
	if err != nil {
		return nil, err
	}
	in := req.GetBackup()
	if in == nil {
		return nil, refuse(fault.Invalid, "backup", "Error in field 'backup' : Must be specified")
	}
	if n := in.GetName(); n != "" && n != name {
		return nil, refuse(fault.Invalid, "backup.name", "Error in field 'name' : Expected '%s' but found '%s'", name, n)
	}
	of, err := s.parse("backup.source_table", tableForm, in.GetSourceTable())
	if err != nil {
		return nil, err
	}
	if of[0] != ids[0] || of[1] != ids[1] {
		return nil, refuse(fault.Invalid, "backup.source_table", "Error in field 'source_table' : Must be a table of %s, but found '%s'", parent(ids, clusterForm, 2), in.GetSourceTable())
	}
	expire, err := timeIn("backup.expire_time", in.GetExpireTime(), now, minBackupLife, maxBackupLife)
	if err != nil {
		return nil, err
	}
	extra, err := backupKind(in, now)
	if err != nil {
		return nil, err
	}
	want := &schema.Backup{Name: name, ExpireTime: expire, Extra: extra.encode()}
	pending := &schema.Backup{Name: name, Table: &schema.Table{Name: in.GetSourceTable()}, StartTime: now, ExpireTime: expire, Extra: want.Extra}
	if _, err := s.b.Table(ctx, in.GetSourceTable()); err != nil {
		return nil, orMissing(err, "backup.source_table", "Table", in.GetSourceTable())
	}
	pb, err := s.creating(pending)
	if err != nil {
		return nil, err
	}
	if err := s.place(ctx, backupForm, "backup_id", name, ids, pb); err != nil {
		return nil, err
	}
	m := &adminpb.CreateBackupMetadata{Name: name, SourceTable: in.GetSourceTable(), StartTime: timestamppb.New(now)}
	return s.begin(ctx, name, m, func(ctx context.Context, op string) (proto.Message, proto.Message, error) {
		extra.Operation = op
		want.Extra = extra.encode()
		s.made(name, op)
		b, err := s.b.CreateBackup(ctx, in.GetSourceTable(), want)
		m := proto.Clone(m).(*adminpb.CreateBackupMetadata)
		m.EndTime = timestamppb.New(s.o.Now())
		if err != nil {
			return m, nil, orMissing(err, "backup.source_table", "Table", in.GetSourceTable())
		}
		pb, err := s.backupProto(b)
		return m, pb, err
	}, func() { s.unplace(name) })
}

// GetBackup implements T22.
func (s *tableServer) GetBackup(ctx context.Context, req *adminpb.GetBackupRequest) (*adminpb.Backup, error) {
	if _, err := s.parse("name", backupForm, req.GetName()); err != nil {
		return nil, err
	}
	// In this order: what is not being made any more is there, or never will be.
	m := s.isMaking(req.GetName())
	b, err := s.b.Backup(ctx, req.GetName())
	if fault.KindOf(err) == fault.NotFound && m != nil {
		return m.pb.(*adminpb.Backup), nil
	}
	if err != nil {
		return nil, orMissing(err, "name", "Backup", req.GetName())
	}
	return s.backupProto(b)
}

var backupMask = maskRule{allowed: []string{"expire_time", "hot_to_standard_time", "backup_type"}}

// UpdateBackup implements T23.
func (s *tableServer) UpdateBackup(ctx context.Context, req *adminpb.UpdateBackupRequest) (*adminpb.Backup, error) {
	in, mask := req.GetBackup(), req.GetUpdateMask()
	name := in.GetName()
	if _, err := s.parse("backup.name", backupForm, name); err != nil {
		return nil, err
	}
	if err := checkMask(mask, in, backupMask); err != nil {
		return nil, err
	}
	if _, err := s.backupAt(ctx, "backup.name", backupForm, name); err != nil {
		return nil, err
	}
	b, err := s.b.UpdateBackup(ctx, name, func(b *schema.Backup) error {
		old, err := backupExtra(b)
		if err != nil {
			return err
		}
		was, err := s.backupProto(b)
		if err != nil {
			return err
		}
		pb := proto.Clone(was).(*adminpb.Backup)
		applyMask(pb, in, mask, backupMask)
		if masks(mask, "expire_time") {
			if b.ExpireTime, err = timeIn("backup.expire_time", pb.GetExpireTime(), b.CreateTime, minBackupLife, maxBackupLife); err != nil {
				return err
			}
			if b.Expired(s.o.Now()) {
				return refuse(fault.Invalid, "backup.expire_time", "Error in field 'expire_time' : Must be in the future. To delete the backup, use DeleteBackup")
			}
		}
		if !masks(mask, "hot_to_standard_time") && !masks(mask, "backup_type") {
			return nil
		}
		switch {
		case was.GetBackupType() != adminpb.Backup_HOT && pb.GetBackupType() == adminpb.Backup_HOT:
			return refuse(fault.Invalid, "backup.backup_type", "Error in field 'backup_type' : A STANDARD backup does not become HOT")
		case pb.GetBackupType() != adminpb.Backup_HOT && !masks(mask, "hot_to_standard_time"):
			pb.HotToStandardTime = nil
		}
		now, err := backupKind(pb, b.CreateTime)
		if err != nil {
			return err
		}
		old.Hot, old.HotToStandard = now.Hot, now.HotToStandard
		b.Extra = old.encode()
		return nil
	})
	if err != nil {
		return nil, orMissing(err, "backup.name", "Backup", name)
	}
	return s.backupProto(b)
}

// policyOfBackup is the record of a backup's policy.
func policyOfBackup(b *schema.Backup) string {
	return fmt.Sprintf("%s%s#%d", policyPrefix, b.Name, b.ID)
}

// DeleteBackup implements T24. One that is being created is not, then.
func (s *tableServer) DeleteBackup(ctx context.Context, req *adminpb.DeleteBackupRequest) (*emptypb.Empty, error) {
	return s.deleteBackup(ctx, backupForm, req.GetName())
}

func (a *Admin) deleteBackup(ctx context.Context, f form, name string) (*emptypb.Empty, error) {
	if _, err := a.parse("name", f, name); err != nil {
		return nil, err
	}
	cancelled := false
	if m := a.isMaking(name); m != nil {
		if t := a.tasks.get(m.operation); t != nil {
			t.cancel(context.Canceled)
			select {
			case <-t.done:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			cancelled = true
		}
	}
	b, err := a.b.Backup(ctx, name)
	if err == nil {
		err = a.b.DeleteBackup(ctx, name)
	}
	if cancelled && fault.KindOf(err) == fault.NotFound {
		return new(emptypb.Empty), nil
	}
	if err != nil {
		return nil, orMissing(err, "name", f.kind, name)
	}
	// No request finds the policy any more. If this fails maintenance does it.
	if _, version, err := a.b.GetRecord(ctx, policyOfBackup(b)); err == nil {
		_ = a.b.DeleteRecord(ctx, policyOfBackup(b), version)
	}
	return new(emptypb.Empty), nil
}

var backupFields = filterFields{
	roots: []string{"name", "source_table", "state", "start_time", "end_time", "expire_time", "size_bytes"},
	names: []string{"name", "source_table"},
}

// backupsBelow returns the backups, or snapshots, whose names have a prefix and
// are of form f, those being made included. finished turns one of the backend's
// into a message.
func backupsBelow[M proto.Message](ctx context.Context, a *Admin, f form, ids []string, finished func(*schema.Backup) (M, error), name func(M) string) ([]M, error) {
	prefix := parent(ids, clusterForm, 2) + "/clusters/"
	if ids[2] != "-" {
		prefix = parent(ids, clusterForm, 3) + "/"
	}
	// In this order: what is not being made any more is there, or never will be.
	pending := a.makingBelow(prefix)
	list, err := a.b.ListBackups(ctx, prefix)
	if err != nil {
		return nil, err
	}
	var out []M
	there := map[string]bool{}
	for _, b := range list {
		if f.split(b.Name) == nil {
			continue
		}
		m, err := finished(b)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
		there[b.Name] = true
	}
	for _, p := range pending {
		if m, ok := p.(M); ok && !there[name(m)] {
			out = append(out, m)
		}
	}
	return out, nil
}

// ListBackups implements T25.
func (s *tableServer) ListBackups(ctx context.Context, req *adminpb.ListBackupsRequest) (*adminpb.ListBackupsResponse, error) {
	ids, err := s.parse("parent", clusterForm, req.GetParent(), true)
	if err != nil {
		return nil, err
	}
	match, err := parseFilter(req.GetFilter(), backupFields)
	if err != nil {
		return nil, err
	}
	key, err := parseOrder(req.GetOrderBy())
	if err != nil {
		return nil, err
	}
	p, err := s.newPage(ctx, "backups "+req.GetParent()+" "+req.GetFilter()+" "+req.GetOrderBy(), max(req.GetPageSize(), 0), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	if p.size == 0 || p.size > maxBackupPage {
		p.size = maxBackupPage
	}
	if ids[2] == "-" {
		_, err = s.instanceForTables(ctx, "parent", parent(ids, clusterForm, 2))
	} else {
		_, err = s.clusterForBackup(ctx, "parent", ids)
	}
	if err != nil {
		return nil, err
	}
	all, err := backupsBelow(ctx, s.Admin, backupForm, ids, s.backupProto, (*adminpb.Backup).GetName)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(b *adminpb.Backup) bool { return !match(b.ProtoReflect()) })
	slices.SortFunc(all, func(a, b *adminpb.Backup) int { return strings.Compare(key(a), key(b)) })
	resp := new(adminpb.ListBackupsResponse)
	resp.Backups, resp.NextPageToken, err = cut(ctx, s.Admin, p, all, key)
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// parseOrder reads an order_by: fields, each perhaps followed by desc. It returns
// a function that gives each backup a text; they compare as the backups do.
func parseOrder(s string) (func(*adminpb.Backup) string, error) {
	if err := checkListingText("order_by", s); err != nil {
		return nil, err
	}
	type by struct {
		field string
		desc  bool
	}
	var order []by
	add := func(field string, desc bool) {
		// A field that is there again decides nothing, and keys would have it twice.
		if !slices.ContainsFunc(order, func(o by) bool { return o.field == field }) {
			order = append(order, by{field, desc})
		}
	}
	if strings.TrimSpace(s) == "" {
		s = "start_time desc"
	}
	for part := range strings.SplitSeq(s, ",") {
		words := strings.Fields(part)
		ok := len(words) == 1 || len(words) == 2 && isOneOf(strings.ToLower(words[1]), "asc", "desc")
		if !ok || !isOneOf(words[0], backupFields.roots...) {
			return nil, refuse(fault.Invalid, "order_by", "Error in field 'order_by' : Expected fields of a backup with an optional 'desc', separated by commas, but found '%s'", part)
		}
		add(words[0], len(words) == 2 && strings.EqualFold(words[1], "desc"))
	}
	add("name", false)
	return func(b *adminpb.Backup) string {
		var key []byte
		for _, o := range order {
			start := len(key)
			switch v := lookup(b.ProtoReflect(), []string{o.field}).(type) {
			case time.Time:
				key = fmt.Appendf(key, "%020d", max(v.UnixMicro(), 0))
			case int64:
				key = fmt.Appendf(key, "%020d", max(v, 0))
			case string:
				// Names hold no control characters, so 0 ends what begins another.
				key = append(append(key, v...), 0)
			default:
				key = append(key, 0)
			}
			if o.desc {
				for i := start; i < len(key); i++ {
					key[i] = ^key[i]
				}
			}
		}
		return hex.EncodeToString(key)
	}, nil
}

// progress of an operation that began at start, which is done if it says so.
func (a *Admin) progress(start time.Time, done bool) *adminpb.OperationProgress {
	p := &adminpb.OperationProgress{StartTime: timestamppb.New(start)}
	if done {
		p.ProgressPercent, p.EndTime = 100, timestamppb.New(a.o.Now())
	}
	return p
}

// CopyBackup implements T27. The copy shares the files of its source.
func (s *tableServer) CopyBackup(ctx context.Context, req *adminpb.CopyBackupRequest) (*longrunningpb.Operation, error) {
	now := s.o.Now()
	ids, name, err := s.newBackup(req)
	if err != nil {
		return nil, err
	}
	from, err := s.backupAt(ctx, "source_backup", backupForm, req.GetSourceBackup())
	if err != nil {
		return nil, err
	}
	source, err := s.backupProto(from)
	if err != nil {
		return nil, err
	}
	if source.GetSourceBackup() != "" {
		return nil, refuse(fault.FailedPrecondition, "source_backup", "A copied backup cannot be copied: %s", req.GetSourceBackup())
	}
	expire, err := timeIn("expire_time", req.GetExpireTime(), now, minBackupLife, maxBackupLife)
	if err != nil {
		return nil, err
	}
	extra := storedBackup{SourceBackup: from.Name}
	pending := from.Clone()
	pending.Name, pending.ExpireTime, pending.Extra = name, expire, extra.encode()
	pb, err := s.creating(pending)
	if err != nil {
		return nil, err
	}
	if err := s.place(ctx, backupForm, "backup_id", name, ids, pb); err != nil {
		return nil, err
	}
	m := &adminpb.CopyBackupMetadata{Name: name, SourceBackupInfo: backupInfo(source), Progress: s.progress(now, false)}
	return s.begin(ctx, name, m, func(ctx context.Context, op string) (proto.Message, proto.Message, error) {
		extra.Operation = op
		s.made(name, op)
		b, err := s.b.CopyBackup(ctx, from.Name, &schema.Backup{Name: name, ExpireTime: expire, Extra: extra.encode()})
		if err != nil {
			return nil, nil, orMissing(err, "source_backup", "Backup", from.Name)
		}
		m := proto.Clone(m).(*adminpb.CopyBackupMetadata)
		m.Progress = s.progress(now, true)
		pb, err := s.backupProto(b)
		return m, pb, err
	}, func() { s.unplace(name) })
}
