package admin

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
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

// storedBackup is what is kept with a backup or a snapshot of the backend.
type storedBackup struct {
	Hot           bool      `json:"hot,omitempty"`
	HotToStandard time.Time `json:"hotToStandard,omitzero"`
	SourceBackup  string    `json:"sourceBackup,omitempty"` // of a copy
	// Operation is the name of the operation that made it.
	Operation   string `json:"operation,omitempty"`
	Description string `json:"description,omitempty"` // of a snapshot
}

func (s storedBackup) encode() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // no field can fail to encode
	}
	return b
}

func backupExtra(b *schema.Backup) (storedBackup, error) {
	var s storedBackup
	if err := json.Unmarshal(b.Extra, &s); err != nil {
		return s, fault.New(fault.Corruption, "read what is kept with %s: %w", b.Name, err)
	}
	return s, nil
}

// backupProto returns a backup as clients see it.
func (a *Admin) backupProto(b *schema.Backup) (*adminpb.Backup, error) {
	s, err := backupExtra(b)
	if err != nil {
		return nil, err
	}
	pb := &adminpb.Backup{
		Name: b.Name, SourceTable: b.Table.Name, SourceBackup: s.SourceBackup, ExpireTime: timestamppb.New(b.ExpireTime),
		StartTime: timestamppb.New(b.StartTime), EndTime: timestamppb.New(b.EndTime), SizeBytes: b.Bytes, State: adminpb.Backup_READY,
		EncryptionInfo: &adminpb.EncryptionInfo{EncryptionType: adminpb.EncryptionInfo_GOOGLE_DEFAULT_ENCRYPTION},
		BackupType:     adminpb.Backup_STANDARD,
	}
	if s.Hot && (s.HotToStandard.IsZero() || a.o.Now().Before(s.HotToStandard)) {
		pb.BackupType = adminpb.Backup_HOT
		if !s.HotToStandard.IsZero() {
			pb.HotToStandardTime = timestamppb.New(s.HotToStandard)
		}
	}
	return pb, nil
}

// A making is a backup or snapshot that is being made.
type making struct {
	pb proto.Message
	// operation makes it; empty until it has begun.
	operation string
}

// places are held while it is decided that a cluster takes a backup, or that it
// is deleted as it has none.
type places struct {
	sync.Mutex
	making map[string]*making // by name of the backup or snapshot
}

// place takes the name of a backup or snapshot that is going to be made in a
// cluster. Its caller gives it back.
func (a *Admin) place(ctx context.Context, f form, field, name string, ids []string, pb proto.Message) error {
	a.places.Lock()
	defer a.places.Unlock()
	if _, err := a.clusterForBackup(ctx, "parent", ids); err != nil {
		return err
	}
	if a.places.making[name] != nil {
		return alreadyThere(field, f.kind, name)
	}
	if _, err := a.b.Backup(ctx, name); err == nil {
		return alreadyThere(field, f.kind, name)
	} else if fault.KindOf(err) != fault.NotFound {
		return err
	}
	a.places.making[name] = &making{pb: pb}
	return nil
}

func (a *Admin) unplace(name string) {
	a.places.Lock()
	defer a.places.Unlock()
	delete(a.places.making, name)
}

// isMaking returns what is being made under a name, or nil.
func (a *Admin) isMaking(name string) *making {
	a.places.Lock()
	defer a.places.Unlock()
	if m := a.places.making[name]; m != nil {
		c := *m
		return &c
	}
	return nil
}

// makingBelow returns what is being made under names with a prefix.
func (a *Admin) makingBelow(prefix string) []proto.Message {
	a.places.Lock()
	defer a.places.Unlock()
	var out []proto.Message
	for name, m := range a.places.making {
		if strings.HasPrefix(name, prefix) {
			out = append(out, m.pb)
		}
	}
	return out
}

// clusterForBackup returns the instance that has the cluster with these ids.
func (a *Admin) clusterForBackup(ctx context.Context, field string, ids []string) (*instance, error) {
	i, err := a.instanceForTables(ctx, field, parent(ids, clusterForm, 2))
	if err != nil {
		return nil, err
	}
	if i.clusters[ids[2]] == nil && (i.version != 0 || !a.o.Emulator) {
		return nil, missing(field, "Cluster", parent(ids, clusterForm, 3))
	}
	return i, nil
}

// noBackupsLocked refuses to delete a cluster or instance that has backups.
func (a *Admin) noBackupsLocked(ctx context.Context, kind, name, prefix string) error {
	list, err := a.b.ListBackups(ctx, prefix)
	if err != nil {
		return err
	}
	some := ""
	if len(list) > 0 {
		some = list[0].Name
	}
	for m := range a.places.making {
		if strings.HasPrefix(m, prefix) {
			some = m
		}
	}
	if some == "" {
		return nil
	}
	return refuse(fault.FailedPrecondition, "name", "%s %s cannot be deleted: it has backups or snapshots, among them %s", kind, name, some)
}

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

// ImportedBackup returns a backup that is going to be made of an exported one, with
// the name that it is to have and its end, and takes that name until release is
// called: clients see it as being created. It is a STANDARD backup.
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

// backupKind returns whether a new backup, or one that was created at from, is
// hot and until when.
func backupKind(pb *adminpb.Backup, from time.Time) (s storedBackup, err error) {
	switch pb.GetBackupType() {
	case adminpb.Backup_BACKUP_TYPE_UNSPECIFIED, adminpb.Backup_STANDARD:
		if pb.GetHotToStandardTime() != nil {
			return s, refuse(fault.Invalid, "backup.hot_to_standard_time", "Error in field 'hot_to_standard_time' : Only HOT backups have it")
		}
	case adminpb.Backup_HOT:
		s.Hot = true
		if pb.GetHotToStandardTime() != nil {
			s.HotToStandard, err = timeIn("backup.hot_to_standard_time", pb.GetHotToStandardTime(), from, minHot, 0)
		}
	default:
		return s, refuse(fault.Invalid, "backup.backup_type", "Error in field 'backup_type' : Unknown value %d", pb.GetBackupType())
	}
	return s, err
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

// creating returns a backup as clients see it while it is being made.
func (a *Admin) creating(b *schema.Backup) (*adminpb.Backup, error) {
	pb, err := a.backupProto(b)
	if err != nil {
		return nil, err
	}
	pb.State, pb.EndTime, pb.EncryptionInfo = adminpb.Backup_CREATING, nil, nil
	return pb, nil
}

// made notes the operation that makes a backup.
func (a *Admin) made(name, operation string) {
	a.places.Lock()
	defer a.places.Unlock()
	if m := a.places.making[name]; m != nil {
		m.operation = operation
	}
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
	// Nobody finds the policy any more. If this fails maintenance does it.
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
	type by struct {
		field string
		desc  bool
	}
	var order []by
	if strings.TrimSpace(s) == "" {
		s = "start_time desc"
	}
	for part := range strings.SplitSeq(s, ",") {
		words := strings.Fields(part)
		ok := len(words) == 1 || len(words) == 2 && isOneOf(strings.ToLower(words[1]), "asc", "desc")
		if !ok || !isOneOf(words[0], backupFields.roots...) {
			return nil, refuse(fault.Invalid, "order_by", "Error in field 'order_by' : Expected fields of a backup with an optional 'desc', separated by commas, but found '%s'", part)
		}
		order = append(order, by{words[0], len(words) == 2 && strings.EqualFold(words[1], "desc")})
	}
	order = append(order, by{field: "name"})
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

// backupInfo describes the source of a copy or of a restored table.
func backupInfo(pb *adminpb.Backup) *adminpb.BackupInfo {
	return &adminpb.BackupInfo{Backup: pb.GetName(), StartTime: pb.GetStartTime(), EndTime: pb.GetEndTime(),
		SourceTable: pb.GetSourceTable(), SourceBackup: pb.GetSourceBackup()}
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

// RestoreTable implements T26. The table serves as soon as it is there: it reads
// the backup's files until compactions replace them.
func (s *tableServer) RestoreTable(ctx context.Context, req *adminpb.RestoreTableRequest) (*longrunningpb.Operation, error) {
	now := s.o.Now()
	name, i, err := s.newTableName(ctx, req.GetParent(), req.GetTableId())
	if err != nil {
		return nil, err
	}
	if _, ok := req.GetSource().(*adminpb.RestoreTableRequest_Backup); !ok {
		return nil, refuse(fault.Invalid, "source", "Error in field 'backup' : Must be specified")
	}
	from, err := s.backupAt(ctx, "backup", backupForm, req.GetBackup())
	if err != nil {
		return nil, err
	}
	source, err := s.backupProto(from)
	if err != nil {
		return nil, err
	}
	optimizes, err := s.changesStorage(ctx, from.Name, i)
	if err != nil {
		return nil, err
	}
	info := backupInfo(source)
	m := &adminpb.RestoreTableMetadata{
		Name: name, SourceType: adminpb.RestoreSourceType_BACKUP, Progress: s.progress(now, false),
		SourceInfo: &adminpb.RestoreTableMetadata_BackupInfo{BackupInfo: info},
	}
	return s.begin(ctx, name, m, func(ctx context.Context, _ string) (proto.Message, proto.Message, error) {
		t, err := s.restore(ctx, i, from.Name, name, &adminpb.RestoreInfo{
			SourceType: adminpb.RestoreSourceType_BACKUP, SourceInfo: &adminpb.RestoreInfo_BackupInfo{BackupInfo: info}})
		if err != nil {
			return nil, nil, orMissing(err, "backup", "Backup", from.Name)
		}
		m := proto.Clone(m).(*adminpb.RestoreTableMetadata)
		m.Progress = s.progress(now, true)
		if optimizes {
			// Nothing remains to be optimized here, but callers may wait for it.
			o, err := s.finished(ctx, name, &adminpb.OptimizeRestoredTableMetadata{Name: name, Progress: s.progress(now, true)}, new(emptypb.Empty))
			if err != nil {
				return nil, nil, err
			}
			m.OptimizeTableOperationName = o.GetName()
		}
		pb, err := tableProto(t, adminpb.Table_SCHEMA_VIEW, nil)
		return m, pb, err
	}, nil)
}

// changesStorage tells whether a table that is restored into i of the backup
// called name gets another type of storage than the backup's cluster has. Only
// then does Google's service optimize it.
func (a *Admin) changesStorage(ctx context.Context, name string, i *instance) (bool, error) {
	ids := backupForm.split(name)
	of, err := a.readInstance(ctx, parent(ids, instanceForm, 2))
	if err != nil || of == nil || of.clusters[ids[2]] == nil {
		return false, err // of no known storage: in emulator mode
	}
	return (of.clusters[ids[2]].GetDefaultStorageType() != adminpb.StorageType_HDD) != i.onSSD(), nil
}

// newTableName returns the name of a table that is going to be restored, and its
// instance.
func (a *Admin) newTableName(ctx context.Context, in, id string) (string, *instance, error) {
	ids, err := a.parse("parent", instanceForm, in)
	if err != nil {
		return "", nil, err
	}
	if err := newID("table_id", "tables", id, tableIDPattern, wire.TableID, 1, schema.MaxTableID); err != nil {
		return "", nil, err
	}
	i, err := a.instanceForTables(ctx, "parent", parent(ids, instanceForm, 2))
	if err != nil {
		return "", nil, err
	}
	name := parent(ids, instanceForm, 2) + "/tables/" + id
	if _, err := a.b.Table(ctx, name); err == nil {
		return "", nil, alreadyThere("table_id", "Table", name)
	} else if fault.KindOf(err) != fault.NotFound {
		return "", nil, err
	}
	return name, i, nil
}

// restore makes the table called name, in i, of a backup or snapshot. The table
// has the schema of the backup, but neither protection nor a change stream nor
// automated backups: those were of the table that was backed up.
func (a *Admin) restore(ctx context.Context, i *instance, from, name string, info *adminpb.RestoreInfo) (*schema.Table, error) {
	t, err := a.b.RestoreTable(ctx, from, name, func(t *schema.Table) error {
		old, err := tableExtra(t)
		if err != nil {
			return err
		}
		x := &adminpb.Table{RowKeySchema: old.GetRowKeySchema(), RestoreInfo: info}
		if i.onSSD() {
			x.TieredStorageConfig = old.GetTieredStorageConfig()
		}
		t.DeletionProtection = false
		return setConfig(t, x, i)
	})
	if fault.KindOf(err) == fault.AlreadyExists {
		return nil, alreadyThere("table_id", "Table", name)
	}
	if err != nil {
		return nil, err
	}
	// The instance may have been deleted, tables first, while this one came.
	if _, err := a.instanceForTables(ctx, "parent", i.pb.GetName()); fault.KindOf(err) == fault.NotFound {
		if e := a.b.DeleteTable(ctx, name); e != nil && fault.KindOf(e) != fault.NotFound {
			return nil, e
		}
		return nil, err
	}
	return t, nil
}

// outcome returns the response of an operation that somebody else carried out,
// or nil if it had no effect.
func (a *Admin) outcome(ctx context.Context, operation string, metadata proto.Message) (proto.Message, error) {
	var name string
	switch m := metadata.(type) {
	case *adminpb.CreateBackupMetadata:
		name = m.GetName()
		m.EndTime = timestamppb.New(a.o.Now())
	case *adminpb.CopyBackupMetadata:
		name = m.GetName()
	case *adminpb.SnapshotTableMetadata:
		m.FinishTime = timestamppb.New(a.o.Now())
		name = m.GetOriginalRequest().GetCluster() + "/snapshots/" + m.GetOriginalRequest().GetSnapshotId()
	case *adminpb.RestoreTableMetadata:
		return a.tableSince(ctx, m.GetName(), m.GetProgress().GetStartTime().AsTime())
	case *adminpb.CreateTableFromSnapshotMetadata:
		m.FinishTime = timestamppb.New(a.o.Now())
		return a.tableSince(ctx, m.GetOriginalRequest().GetParent()+"/tables/"+m.GetOriginalRequest().GetTableId(), m.GetRequestTime().AsTime())
	default:
		return nil, nil
	}
	b, err := a.b.Backup(ctx, name)
	if fault.KindOf(err) == fault.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if s, err := backupExtra(b); err != nil || s.Operation != operation {
		return nil, err
	}
	if snapshotForm.split(name) != nil {
		return a.snapshotProto(b)
	}
	return a.backupProto(b)
}

// tableSince returns a table that was made after a time, or nil.
func (a *Admin) tableSince(ctx context.Context, name string, at time.Time) (proto.Message, error) {
	t, err := a.b.Table(ctx, name)
	switch {
	case fault.KindOf(err) == fault.NotFound || err == nil && t.CreateTime.Before(at):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return tableProto(t, adminpb.Table_SCHEMA_VIEW, nil)
}
