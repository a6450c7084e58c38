package sql

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/type/date"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/types"
)

// maxParams bounds the parameters of one statement.
const maxParams = 10_000

// inParam says that err is about the parameter called name, in a map of the
// request called field.
func inParam(field, name string, err *fault.Error) *fault.Error {
	e := *err
	e.Msg = fmt.Sprintf("Error in field '%s' : Error in parameter '%s' : %s", field, printable(name), err.Msg)
	e.Field = fmt.Sprintf("%s[%s]", field, printable(name))
	if err.Field != "" {
		e.Field += "." + err.Field
	}
	return &e
}

// printable bounds what an answer repeats of a request.
func printable(s string) string {
	if len(s) > 100 {
		s = s[:100] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// paramTypes reads the declared types of parameters. Names are in lower case in
// the result: two that differ in case only are refused.
func paramTypes(field string, in map[string]*bigtablepb.Type) (map[string]*types.Type, error) {
	if len(in) > maxParams {
		return nil, fault.InvalidField(field, "Error in field '%s' : At most %d parameters are allowed, but found %d", field, maxParams, len(in))
	}
	out := make(map[string]*types.Type, len(in))
	for _, name := range slices.Sorted(maps.Keys(in)) {
		t, err := paramType(in[name])
		if err == nil && name == "" {
			err = fault.New(fault.Invalid, "A parameter needs a name")
		}
		key := strings.ToLower(name)
		if _, twice := out[key]; err == nil && twice {
			err = fault.New(fault.Invalid, "Names of parameters must differ in more than case")
		}
		if err != nil {
			return nil, inParam(field, name, err)
		}
		out[key] = t
	}
	return out, nil
}

// bind reads the values of the parameters that were declared: all of them, and
// no others.
func bind(in map[string]*bigtablepb.Value, declared map[string]*types.Type) (map[string]types.Value, error) {
	const field = "params"
	if len(declared) == 0 && len(in) == 0 {
		return nil, nil
	}
	out := make(map[string]types.Value, len(declared))
	for name, pb := range in {
		key := strings.ToLower(name)
		t, ok := declared[key]
		if !ok {
			return nil, inParam(field, name, fault.New(fault.Invalid, "The statement was prepared without this parameter"))
		}
		if _, twice := out[key]; twice {
			return nil, inParam(field, name, fault.New(fault.Invalid, "Names of parameters must differ in more than case"))
		}
		if pb.GetType() != nil && !proto.Equal(bare(pb.GetType()), typeProto(t)) {
			return nil, inParam(field, name, &fault.Error{Kind: fault.Invalid, Field: "type", Msg: fmt.Sprintf("The type must be %v, as it was prepared, or not be set", t)})
		}
		v, err := value(pb, t)
		if err != nil {
			return nil, inParam(field, name, err)
		}
		out[key] = v
	}
	if len(out) < len(declared) {
		for _, name := range slices.Sorted(maps.Keys(declared)) {
			if _, ok := out[name]; !ok {
				return nil, fault.InvalidField(field, "Error in field '%s' : Parameter '%s' was prepared, but has no value", field, printable(name))
			}
		}
	}
	return out, nil
}

// bare returns t without encodings.
func bare(t *bigtablepb.Type) *bigtablepb.Type {
	if p, err := paramType(t); err == nil {
		return typeProto(p)
	}
	return t
}

// typed reads values that say their types themselves.
func typed(in map[string]*bigtablepb.Value) (map[string]*types.Type, map[string]types.Value, error) {
	const field = "params"
	if len(in) == 0 {
		return nil, nil, nil
	}
	declared := make(map[string]*bigtablepb.Type, len(in))
	for name, v := range in {
		declared[name] = v.GetType()
	}
	ts, err := paramTypes(field, declared)
	if err != nil {
		return nil, nil, err
	}
	out := make(map[string]types.Value, len(in))
	for name, pb := range in {
		key := strings.ToLower(name)
		v, err := value(pb, ts[key])
		if err != nil {
			return nil, nil, inParam(field, name, err)
		}
		out[key] = v
	}
	return ts, out, nil
}

// viewParams reads what VIEW_PARAMETERS() returns: STRINGs, whose names keep their
// case.
func viewParams(in map[string]*bigtablepb.Value) (map[string]types.Value, error) {
	const field = "view_parameters"
	if len(in) == 0 {
		return nil, nil
	}
	if len(in) > maxParams {
		return nil, fault.InvalidField(field, "Error in field '%s' : At most %d parameters are allowed, but found %d", field, maxParams, len(in))
	}
	out := make(map[string]types.Value, len(in))
	for name, pb := range in {
		var err *fault.Error
		var v types.Value
		if t := pb.GetType(); t != nil && t.GetStringType() == nil {
			err = &fault.Error{Kind: fault.Invalid, Field: "type", Msg: "The type must be STRING, or not be set"}
		} else {
			v, err = value(pb, types.StringType)
		}
		if err != nil {
			return nil, inParam(field, name, err)
		}
		out[name] = v
	}
	return out, nil
}

// The numbers of the first and last day, and of the first and last microsecond,
// of SQL: years 1 to 9999.
const (
	minDay, maxDay       = -719162, 2932896
	minMicros, maxMicros = minDay * 86400_000_000, (maxDay+1)*86400_000_000 - 1
)

// kindName returns the member of Value's oneof that is set.
func kindName(pb *bigtablepb.Value) string {
	switch pb.GetKind().(type) {
	case *bigtablepb.Value_RawValue:
		return "raw_value"
	case *bigtablepb.Value_RawTimestampMicros:
		return "raw_timestamp_micros"
	case *bigtablepb.Value_BytesValue:
		return "bytes_value"
	case *bigtablepb.Value_StringValue:
		return "string_value"
	case *bigtablepb.Value_IntValue:
		return "int_value"
	case *bigtablepb.Value_BoolValue:
		return "bool_value"
	case *bigtablepb.Value_FloatValue:
		return "float_value"
	case *bigtablepb.Value_TimestampValue:
		return "timestamp_value"
	case *bigtablepb.Value_DateValue:
		return "date_value"
	case *bigtablepb.Value_ArrayValue:
		return "array_value"
	}
	return "no value"
}

// value reads a value of type t. One without a kind is NULL.
func value(pb *bigtablepb.Value, t *types.Type) (types.Value, *fault.Error) {
	if pb.GetKind() == nil {
		return types.Null, nil
	}
	no := func(field, format string, args ...any) (types.Value, *fault.Error) {
		return types.Null, fault.InvalidField(field, format, args...)
	}
	switch t.Kind {
	case types.Bool:
		if k, ok := pb.Kind.(*bigtablepb.Value_BoolValue); ok {
			return types.NewBool(k.BoolValue), nil
		}
	case types.Int64:
		if k, ok := pb.Kind.(*bigtablepb.Value_IntValue); ok {
			return types.NewInt(k.IntValue), nil
		}
	case types.Float64:
		if k, ok := pb.Kind.(*bigtablepb.Value_FloatValue); ok {
			return types.NewFloat(k.FloatValue), nil
		}
	case types.Float32:
		if k, ok := pb.Kind.(*bigtablepb.Value_FloatValue); ok {
			return types.NewFloat(float64(float32(k.FloatValue))), nil
		}
	case types.String:
		if k, ok := pb.Kind.(*bigtablepb.Value_StringValue); ok {
			if !utf8.ValidString(k.StringValue) {
				return no("string_value", "A STRING must be valid UTF-8")
			}
			return types.NewString(k.StringValue), nil
		}
	case types.Bytes:
		if k, ok := pb.Kind.(*bigtablepb.Value_BytesValue); ok {
			return types.NewString(string(k.BytesValue)), nil
		}
	case types.Timestamp:
		if k, ok := pb.Kind.(*bigtablepb.Value_TimestampValue); ok {
			ts := k.TimestampValue
			if ts.GetNanos() < 0 || ts.GetNanos() > 999_999_999 || ts.GetSeconds() < minDay*86400 || ts.GetSeconds() >= (maxDay+1)*86400 {
				return no("timestamp_value", "A TIMESTAMP must be between 0001-01-01 00:00:00 and 9999-12-31 23:59:59.999999 UTC")
			}
			return types.NewInt(ts.GetSeconds()*1_000_000 + int64(ts.GetNanos())/1000), nil
		}
	case types.Date:
		if k, ok := pb.Kind.(*bigtablepb.Value_DateValue); ok {
			n, ok := dayOf(k.DateValue)
			if !ok {
				return no("date_value", "There is no such day between 0001-01-01 and 9999-12-31")
			}
			return types.NewInt(n), nil
		}
	case types.Array:
		if k, ok := pb.Kind.(*bigtablepb.Value_ArrayValue); ok {
			list := make([]types.Value, len(k.ArrayValue.GetValues()))
			for i, e := range k.ArrayValue.GetValues() {
				field := fmt.Sprintf("array_value.values[%d]", i)
				if e.GetType() != nil {
					return no(field+".type", "The type of an element must not be set, as that of the array tells it")
				}
				v, err := value(e, t.Elem)
				if err != nil {
					err.Msg = fmt.Sprintf("Error in element #%d : %s", i, err.Msg)
					if err.Field != "" {
						field += "." + err.Field
					}
					err.Field = field
					return types.Null, err
				}
				list[i] = v
			}
			return types.NewList(list), nil
		}
	}
	return no(kindName(pb), "A value of type %v is expected, but found %s", t, kindName(pb))
}

// dayOf returns the number of a day since 1970-01-01.
func dayOf(d *date.Date) (int64, bool) {
	y, m, day := int(d.GetYear()), time.Month(d.GetMonth()), int(d.GetDay())
	t := time.Date(y, m, day, 0, 0, 0, 0, time.UTC)
	if y < 1 || y > 9999 || t.Year() != y || t.Month() != m || t.Day() != day {
		return 0, false
	}
	return t.Unix() / 86400, true
}
