package admin

import (
	"time"
	"unicode/utf8"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/wire"
)

// newFamily returns the column family that a request describes.
func newFamily(name string, pb *adminpb.ColumnFamily) (schema.Family, error) {
	f := schema.Family{Name: name}
	if n := utf8.RuneCountInString(name); n > schema.MaxFamilyName {
		return f, refuse(fault.Invalid, "", "Invalid id for collection columnFamilies : Length should be between [1,%d], but found %d '%s'", schema.MaxFamilyName, n, name)
	}
	if !wire.FamilyID(name) {
		return f, refuse(fault.Invalid, "", "Invalid id for collection columnFamilies : Should match [-_.a-zA-Z0-9]+ but found '%s'", name)
	}
	var err error
	if f.GC, err = newGCRule(pb.GetGcRule()); err != nil {
		return f, err
	}
	if f.Aggregate, f.Extra, err = newValueType(pb.GetValueType()); err != nil {
		return f, err
	}
	return f, nil
}

// familyProto returns f as clients see it.
func familyProto(f schema.Family) (*adminpb.ColumnFamily, error) {
	pb := &adminpb.ColumnFamily{GcRule: gcRuleProto(f.GC)}
	if len(f.Extra) > 0 {
		pb.ValueType = new(adminpb.Type)
		if err := proto.Unmarshal(f.Extra, pb.ValueType); err != nil {
			return nil, fault.New(fault.Corruption, "read value type of family %s: %w", f.Name, err)
		}
	}
	return pb, nil
}

// newGCRule returns the rule that pb describes; nil keeps everything.
func newGCRule(pb *adminpb.GcRule) (*schema.GCRule, error) {
	if n := proto.Size(pb); n > schema.MaxGCRule {
		return nil, refuse(fault.Invalid, "gc_rule", "Error in field 'gc_rule' : Must serialize to at most %d bytes, but found %d", schema.MaxGCRule, n)
	}
	if pb.GetRule() == nil {
		return nil, nil
	}
	r, err := gcRule(pb)
	return r, within("gc_rule", -1, err)
}

// gcRule converts a rule that is not empty. Its size bounds the recursion.
func gcRule(pb *adminpb.GcRule) (*schema.GCRule, error) {
	list := func(field string, pbs []*adminpb.GcRule) ([]*schema.GCRule, error) {
		if len(pbs) == 0 {
			return nil, refuse(fault.Invalid, field, "Error in field '%s' : Needs at least one rule", field)
		}
		rs := make([]*schema.GCRule, 0, len(pbs))
		for i, pb := range pbs {
			r, err := gcRule(pb)
			if err != nil {
				return nil, within(field, -1, within("rules", i, err))
			}
			rs = append(rs, r)
		}
		return rs, nil
	}
	switch r := pb.GetRule().(type) {
	case *adminpb.GcRule_MaxNumVersions:
		if r.MaxNumVersions < 1 {
			return nil, refuse(fault.Invalid, "max_num_versions", "Error in field 'max_num_versions' : Must be at least 1, but found %d", r.MaxNumVersions)
		}
		return &schema.GCRule{MaxVersions: r.MaxNumVersions}, nil
	case *adminpb.GcRule_MaxAge:
		if err := r.MaxAge.CheckValid(); err != nil {
			return nil, refuse(fault.Invalid, "max_age", "Error in field 'max_age' : %v", err)
		}
		// AsDuration gives 292 years for anything longer.
		d := r.MaxAge.AsDuration().Truncate(time.Microsecond)
		if d < time.Millisecond {
			return nil, refuse(fault.Invalid, "max_age", "Error in field 'max_age' : Must be at least 1 millisecond, but found %v", d)
		}
		return &schema.GCRule{MaxAge: d}, nil
	case *adminpb.GcRule_Union_:
		rs, err := list("union", r.Union.GetRules())
		return &schema.GCRule{Union: rs}, err
	case *adminpb.GcRule_Intersection_:
		rs, err := list("intersection", r.Intersection.GetRules())
		return &schema.GCRule{Intersection: rs}, err
	}
	return nil, refuse(fault.Invalid, "", "A rule within a union or an intersection must not be empty")
}

// gcRuleProto is the inverse of newGCRule; no rule is an empty one.
func gcRuleProto(r *schema.GCRule) *adminpb.GcRule {
	list := func(rs []*schema.GCRule) []*adminpb.GcRule {
		pbs := make([]*adminpb.GcRule, 0, len(rs))
		for _, r := range rs {
			pbs = append(pbs, gcRuleProto(r))
		}
		return pbs
	}
	switch {
	case r == nil:
		return new(adminpb.GcRule)
	case r.MaxVersions > 0:
		return &adminpb.GcRule{Rule: &adminpb.GcRule_MaxNumVersions{MaxNumVersions: r.MaxVersions}}
	case r.MaxAge > 0:
		return &adminpb.GcRule{Rule: &adminpb.GcRule_MaxAge{MaxAge: durationpb.New(r.MaxAge)}}
	case len(r.Union) > 0:
		return &adminpb.GcRule{Rule: &adminpb.GcRule_Union_{Union: &adminpb.GcRule_Union{Rules: list(r.Union)}}}
	case len(r.Intersection) > 0:
		return &adminpb.GcRule{Rule: &adminpb.GcRule_Intersection_{Intersection: &adminpb.GcRule_Intersection{Rules: list(r.Intersection)}}}
	}
	return new(adminpb.GcRule)
}

// newValueType returns how a family of type pb aggregates, and the type as it
// is kept: complete, and without deprecated forms.
func newValueType(pb *adminpb.Type) (schema.Aggregate, []byte, error) {
	if pb.GetKind() == nil {
		return schema.NotAggregate, nil, nil
	}
	t := proto.Clone(pb).(*adminpb.Type)
	if err := completeType(t, 0); err != nil {
		return 0, nil, within("value_type", -1, err)
	}
	b, err := deterministic.Marshal(t)
	if err != nil {
		return 0, nil, err
	}
	agg := schema.NotAggregate
	switch t.GetAggregateType().GetAggregator().(type) {
	case *adminpb.Type_Aggregate_Sum_:
		agg = schema.Sum
	case *adminpb.Type_Aggregate_Min_:
		agg = schema.Min
	case *adminpb.Type_Aggregate_Max_:
		agg = schema.Max
	case *adminpb.Type_Aggregate_HllppUniqueCount:
		agg = schema.HLL
	}
	return agg, b, nil
}

// maxTypeDepth bounds nested types, of which each level is walked by recursion.
const maxTypeDepth = 20

// completeType checks a type and brings it into the one form that is kept.
func completeType(t *adminpb.Type, depth int) error {
	if depth > maxTypeDepth {
		return refuse(fault.Invalid, "", "Types are nested too deeply")
	}
	sub := func(field string, t *adminpb.Type) error {
		if t.GetKind() == nil {
			return refuse(fault.Invalid, field, "Error in field '%s' : Must be specified", field)
		}
		return within(field, -1, completeType(t, depth+1))
	}
	switch k := t.GetKind().(type) {
	case *adminpb.Type_StringType:
		if _, old := k.StringType.GetEncoding().GetEncoding().(*adminpb.Type_String_Encoding_Utf8Raw_); old {
			k.StringType.Encoding = &adminpb.Type_String_Encoding{Encoding: &adminpb.Type_String_Encoding_Utf8Bytes_{Utf8Bytes: new(adminpb.Type_String_Encoding_Utf8Bytes)}}
		}
	case *adminpb.Type_Int64Type:
		completeInt64(k.Int64Type.GetEncoding())
	case *adminpb.Type_TimestampType:
		completeInt64(k.TimestampType.GetEncoding().GetUnixMicrosInt64())
	case *adminpb.Type_ArrayType:
		if k.ArrayType.GetElementType().GetArrayType() != nil {
			return refuse(fault.Invalid, "array_type.element_type", "Error in field 'element_type' : Must not be an array")
		}
		return sub("array_type.element_type", k.ArrayType.GetElementType())
	case *adminpb.Type_MapType:
		switch k.MapType.GetKeyType().GetKind().(type) {
		case *adminpb.Type_BytesType, *adminpb.Type_StringType, *adminpb.Type_Int64Type:
		default:
			return refuse(fault.Invalid, "map_type.key_type", "Error in field 'key_type' : Must be bytes, string or int64")
		}
		if err := sub("map_type.key_type", k.MapType.GetKeyType()); err != nil {
			return err
		}
		return sub("map_type.value_type", k.MapType.GetValueType())
	case *adminpb.Type_StructType:
		for i, f := range k.StructType.GetFields() {
			if err := sub("type", f.GetType()); err != nil {
				return within("struct_type.fields", i, err)
			}
		}
	case *adminpb.Type_AggregateType:
		if depth > 0 {
			return refuse(fault.Invalid, "aggregate_type", "An aggregate must not be part of another type")
		}
		return within("aggregate_type", -1, completeAggregate(k.AggregateType, sub))
	}
	return nil
}

func completeInt64(e *adminpb.Type_Int64_Encoding) {
	if be, ok := e.GetEncoding().(*adminpb.Type_Int64_Encoding_BigEndianBytes_); ok {
		be.BigEndianBytes = new(adminpb.Type_Int64_Encoding_BigEndianBytes)
	}
}

func completeAggregate(a *adminpb.Type_Aggregate, sub func(string, *adminpb.Type) error) error {
	a.StateType = nil // output only
	if err := sub("input_type", a.GetInputType()); err != nil {
		return err
	}
	switch a.GetAggregator().(type) {
	case *adminpb.Type_Aggregate_Sum_, *adminpb.Type_Aggregate_Min_, *adminpb.Type_Aggregate_Max_:
		in := a.GetInputType().GetInt64Type()
		if in == nil {
			return refuse(fault.Invalid, "input_type", "Error in field 'input_type' : Must be int64 for this aggregator")
		}
		switch in.GetEncoding().GetEncoding().(type) {
		case nil:
			in.Encoding = &adminpb.Type_Int64_Encoding{Encoding: &adminpb.Type_Int64_Encoding_BigEndianBytes_{BigEndianBytes: new(adminpb.Type_Int64_Encoding_BigEndianBytes)}}
		case *adminpb.Type_Int64_Encoding_BigEndianBytes_:
		default:
			return refuse(fault.Invalid, "input_type", "Error in field 'input_type' : Must be encoded as big_endian_bytes for this aggregator")
		}
		a.StateType = proto.Clone(a.GetInputType()).(*adminpb.Type)
	case *adminpb.Type_Aggregate_HllppUniqueCount:
		a.StateType = &adminpb.Type{Kind: &adminpb.Type_BytesType{BytesType: &adminpb.Type_Bytes{
			Encoding: &adminpb.Type_Bytes_Encoding{Encoding: &adminpb.Type_Bytes_Encoding_Raw_{Raw: new(adminpb.Type_Bytes_Encoding_Raw)}},
		}}}
	default:
		return refuse(fault.Invalid, "aggregator", "Error in field 'aggregator' : Must be specified")
	}
	return nil
}

// relaxesAge tells whether a purely age-based rule gives way to one that keeps
// cells longer.
func relaxesAge(was, now *schema.GCRule) bool {
	if was == nil || was.MaxAge == 0 {
		return false
	}
	return !collectsByAge(now, was.MaxAge)
}

// collectsByAge tells whether r surely collects cells older than age.
func collectsByAge(r *schema.GCRule, age time.Duration) bool {
	switch {
	case r == nil:
		return false
	case r.MaxAge > 0:
		return r.MaxAge <= age
	case len(r.Union) > 0:
		for _, s := range r.Union {
			if collectsByAge(s, age) {
				return true
			}
		}
	case len(r.Intersection) > 0:
		for _, s := range r.Intersection {
			if !collectsByAge(s, age) {
				return false
			}
		}
		return true
	}
	return false
}
