package admin

import (
	"encoding/json"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
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

// backupInfo describes the source of a copy or of a restored table.
func backupInfo(pb *adminpb.Backup) *adminpb.BackupInfo {
	return &adminpb.BackupInfo{Backup: pb.GetName(), StartTime: pb.GetStartTime(), EndTime: pb.GetEndTime(),
		SourceTable: pb.GetSourceTable(), SourceBackup: pb.GetSourceBackup()}
}
