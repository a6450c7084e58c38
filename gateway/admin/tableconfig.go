package admin

import (
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

const day = 24 * time.Hour

// tableExtra returns the settings of a table: a google.bigtable.admin.v2.Table of
// which only change_stream_config, automated_backup_policy, tiered_storage_config,
// row_key_schema and restore_info are set. The engine keeps them for the gateway,
// but for the first, on which it acts. Versions that did not keep changes wrote that
// one too, which enabled nothing.
func tableExtra(t *schema.Table) (*adminpb.Table, error) {
	x := new(adminpb.Table)
	if err := proto.Unmarshal(t.Extra, x); err != nil {
		return nil, fault.New(fault.Corruption, "read settings of table %s: %w", t.Name, err)
	}
	x.ChangeStreamConfig = nil
	if s := t.ChangeStream(); s != nil {
		x.ChangeStreamConfig = &adminpb.ChangeStreamConfig{RetentionPeriod: durationpb.New(s.Retention)}
	}
	return x, nil
}

// setStream enables, changes or, if c is nil, disables the change stream of t, which
// is to be stored as its next version. What was kept of an earlier stream is no part
// of a new one.
func setStream(t *schema.Table, c *adminpb.ChangeStreamConfig, now time.Time) {
	if c == nil {
		t.DisableStream()
		return
	}
	t.EnableStream(c.GetRetentionPeriod().AsDuration(), now)
}

// Settings returns the settings of a table beside its families: change stream,
// automated backups, tiered storage and row key schema. No other field of the answer
// is set.
func Settings(t *schema.Table) (*adminpb.Table, error) { return tableExtra(t) }

// configOf picks from a table of a request what tableExtra keeps.
func configOf(pb *adminpb.Table) *adminpb.Table {
	return proto.Clone(&adminpb.Table{
		ChangeStreamConfig: pb.GetChangeStreamConfig(), AutomatedBackupConfig: pb.GetAutomatedBackupConfig(),
		TieredStorageConfig: pb.GetTieredStorageConfig(), RowKeySchema: pb.GetRowKeySchema(),
	}).(*adminpb.Table)
}

// checkConfig refuses settings that a table of i with these families cannot
// have, and brings the others into the form that is kept.
func checkConfig(x *adminpb.Table, i *instance, families map[string]schema.Family) error {
	if c := x.GetChangeStreamConfig(); c != nil {
		d, err := duration("change_stream_config.retention_period", c.GetRetentionPeriod(), day, 7*day)
		if err != nil {
			return err
		}
		c.RetentionPeriod = d
	}
	if err := checkBackupPolicy(x, i); err != nil {
		return err
	}
	if c := x.GetTieredStorageConfig(); c != nil {
		rule, ok := c.GetInfrequentAccess().GetRule().(*adminpb.TieredStorageRule_IncludeIfOlderThan)
		if !ok {
			return refuse(fault.Invalid, "tiered_storage_config.infrequent_access", "Error in field 'infrequent_access' : Must be specified")
		}
		d, err := duration("tiered_storage_config.infrequent_access.include_if_older_than", rule.IncludeIfOlderThan, 30*day, 0)
		if err != nil {
			return err
		}
		rule.IncludeIfOlderThan = d
		if !i.onSSD() {
			return refuse(fault.Invalid, "tiered_storage_config", "Error in field 'tiered_storage_config' : Only SSD instances can configure tiered storage")
		}
	}
	if s := x.GetRowKeySchema(); s != nil {
		if proto.Size(s) == 0 {
			x.RowKeySchema = nil
			return nil
		}
		return within("row_key_schema", -1, checkRowKeySchema(s, families))
	}
	return nil
}

// checkBackupPolicy does checkConfig for the automated backup policy.
func checkBackupPolicy(x *adminpb.Table, i *instance) error {
	p := x.GetAutomatedBackupPolicy()
	if zeroDuration(p.GetKeepHotDuration()) {
		if p != nil {
			p.KeepHotDuration = nil
		}
	}
	switch {
	case p == nil:
		x.AutomatedBackupConfig = nil
		return nil
	case p.GetDisabled():
		// Only that backups are off is kept.
		x.AutomatedBackupConfig = &adminpb.Table_AutomatedBackupPolicy_{AutomatedBackupPolicy: &adminpb.Table_AutomatedBackupPolicy{Disabled: true}}
		return nil
	}
	const path = "automated_backup_policy."
	d, err := duration(path+"retention_period", p.GetRetentionPeriod(), 3*day, 90*day)
	if err != nil {
		return err
	}
	p.RetentionPeriod = d
	if zeroDuration(p.GetFrequency()) {
		p.Frequency = durationpb.New(day)
	}
	if p.Frequency, err = duration(path+"frequency", p.GetFrequency(), day, day); err != nil {
		return err
	}
	if p.KeepHotDuration != nil {
		if p.KeepHotDuration, err = duration(path+"keep_hot_duration", p.KeepHotDuration, day, 10*day); err != nil {
			return err
		}
		if p.KeepHotDuration.AsDuration() > d.AsDuration() {
			return refuse(fault.Invalid, path+"keep_hot_duration", "Error in field 'keep_hot_duration' : Must not exceed retention_period %v, but found %v", d.AsDuration(), p.KeepHotDuration.AsDuration())
		}
		if !i.onSSD() {
			return refuse(fault.Invalid, path+"keep_hot_duration", "Error in field 'keep_hot_duration' : Only SSD instances support HOT automated backups")
		}
	}
	if len(p.GetLocations()) > 0 && i.pb.GetEdition() != adminpb.Instance_ENTERPRISE_PLUS {
		return refuse(fault.Invalid, path+"locations", "Error in field 'locations' : Only instances of the ENTERPRISE_PLUS edition can set it")
	}
	return nil
}

func zeroDuration(d *durationpb.Duration) bool { return d.GetSeconds() == 0 && d.GetNanos() == 0 }

// duration checks that d is between low and high (0: no bound) and returns it
// in whole microseconds.
func duration(path string, d *durationpb.Duration, low, high time.Duration) (*durationpb.Duration, error) {
	field := leaf(path)
	if d == nil {
		return nil, refuse(fault.Invalid, path, "Error in field '%s' : Must be specified", field)
	}
	if err := d.CheckValid(); err != nil {
		return nil, refuse(fault.Invalid, path, "Error in field '%s' : %v", field, err)
	}
	v := d.AsDuration().Truncate(time.Microsecond)
	switch {
	case low == high && v != low:
		return nil, refuse(fault.Invalid, path, "Error in field '%s' : Must be %v, but found %v", field, low, v)
	case high == 0 && v < low:
		return nil, refuse(fault.Invalid, path, "Error in field '%s' : Must be at least %v, but found %v", field, low, v)
	case high != 0 && (v < low || v > high):
		return nil, refuse(fault.Invalid, path, "Error in field '%s' : Must be between %v and %v, but found %v", field, low, high, v)
	}
	return durationpb.New(v), nil
}

// onSSD tells whether every cluster of i stores on SSD.
func (i *instance) onSSD() bool {
	for _, c := range i.clusters {
		if c.GetDefaultStorageType() == adminpb.StorageType_HDD {
			return false
		}
	}
	return true
}

// checkRowKeySchema refuses a structure that row keys cannot have.
func checkRowKeySchema(s *adminpb.Type_Struct, families map[string]schema.Family) error {
	if len(s.GetFields()) == 0 {
		return refuse(fault.Invalid, "fields", "Error in field 'fields' : Needs at least one field")
	}
	seen := map[string]bool{}
	for n, f := range s.GetFields() {
		bad := func(field, format string, args ...any) error {
			return within("fields", n, refuse(fault.Invalid, field, format, args...))
		}
		name := f.GetFieldName()
		switch _, family := families[name]; {
		case name == "":
			return bad("field_name", "Error in field 'field_name' : Must not be empty")
		case name == "_key" || name == "_timestamp":
			return bad("field_name", "Error in field 'field_name' : '%s' is reserved", name)
		case family:
			return bad("field_name", "Error in field 'field_name' : '%s' is the name of a column family", name)
		case seen[name]:
			return bad("field_name", "Error in field 'field_name' : Duplicate name '%s'", name)
		}
		seen[name] = true
		var encoded bool
		switch k := f.GetType().GetKind().(type) {
		case *adminpb.Type_BytesType:
			encoded = k.BytesType.GetEncoding().GetEncoding() != nil
		case *adminpb.Type_StringType:
			encoded = k.StringType.GetEncoding().GetEncoding() != nil
		case *adminpb.Type_Int64Type:
			encoded = k.Int64Type.GetEncoding().GetEncoding() != nil
		case *adminpb.Type_TimestampType:
			encoded = k.TimestampType.GetEncoding().GetUnixMicrosInt64().GetEncoding() != nil
		default:
			return bad("type", "Error in field 'type' : Must be bytes, string, int64 or timestamp")
		}
		if !encoded {
			return bad("type", "Error in field 'type' : Must have an encoding")
		}
		if err := completeType(f.GetType(), 0); err != nil {
			return within("fields", n, err)
		}
	}
	switch e := s.GetEncoding().GetEncoding().(type) {
	case *adminpb.Type_Struct_Encoding_Singleton_:
		if len(s.GetFields()) != 1 {
			return refuse(fault.Invalid, "encoding.singleton", "Error in field 'encoding' : Singleton needs exactly one field, but found %d", len(s.GetFields()))
		}
	case *adminpb.Type_Struct_Encoding_DelimitedBytes_:
		if n := len(e.DelimitedBytes.GetDelimiter()); n < 1 || n > 50 {
			return refuse(fault.Invalid, "encoding.delimited_bytes.delimiter", "Error in field 'delimiter' : Length should be between [1,50], but found %d", n)
		}
	case *adminpb.Type_Struct_Encoding_OrderedCodeBytes_:
	default:
		return refuse(fault.Invalid, "encoding", "Error in field 'encoding' : Must be specified")
	}
	return nil
}
