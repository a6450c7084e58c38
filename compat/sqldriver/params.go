package sqldriver

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/type/date"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/compat/sqlclient"
)

// A Date is a parameter of the type DATE.
type Date struct {
	Year  int
	Month time.Month
	Day   int
}

var (
	bytesType    = reflect.TypeFor[[]byte]()
	timeType     = reflect.TypeFor[time.Time]()
	dateType     = reflect.TypeFor[Date]()
	boolSQL      = &bigtablepb.Type{Kind: &bigtablepb.Type_BoolType{BoolType: &bigtablepb.Type_Bool{}}}
	int64SQL     = &bigtablepb.Type{Kind: &bigtablepb.Type_Int64Type{Int64Type: &bigtablepb.Type_Int64{}}}
	float32SQL   = &bigtablepb.Type{Kind: &bigtablepb.Type_Float32Type{Float32Type: &bigtablepb.Type_Float32{}}}
	float64SQL   = &bigtablepb.Type{Kind: &bigtablepb.Type_Float64Type{Float64Type: &bigtablepb.Type_Float64{}}}
	stringSQL    = &bigtablepb.Type{Kind: &bigtablepb.Type_StringType{StringType: &bigtablepb.Type_String{}}}
	bytesSQL     = &bigtablepb.Type{Kind: &bigtablepb.Type_BytesType{BytesType: &bigtablepb.Type_Bytes{}}}
	dateSQL      = &bigtablepb.Type{Kind: &bigtablepb.Type_DateType{DateType: &bigtablepb.Type_Date{}}}
	timestampSQL = &bigtablepb.Type{Kind: &bigtablepb.Type_TimestampType{TimestampType: &bigtablepb.Type_Timestamp{}}}
	valuerType   = reflect.TypeFor[driver.Valuer]()
)

var errUntyped = errors.New("bigtable: a parameter that is nil has no type: use a nil pointer, such as (*int64)(nil)")

// param returns a Go value as a parameter.
func param(v any) (sqlclient.Param, error) {
	if v == nil {
		return sqlclient.Param{}, errUntyped
	}
	r, valid, err := plain(reflect.ValueOf(v))
	if err != nil {
		return sqlclient.Param{}, err
	}
	t := r.Type()
	if t.Kind() == reflect.Slice && t != bytesType {
		elem, err := scalarType(t.Elem())
		if err != nil {
			return sqlclient.Param{}, err
		}
		p := sqlclient.Param{Type: &bigtablepb.Type{Kind: &bigtablepb.Type_ArrayType{ArrayType: &bigtablepb.Type_Array{ElementType: elem}}}, Value: new(bigtablepb.Value)}
		if valid && !r.IsNil() {
			list := &bigtablepb.ArrayValue{}
			for i := range r.Len() {
				list.Values = append(list.Values, scalar(r.Index(i)))
			}
			p.Value.Kind = &bigtablepb.Value_ArrayValue{ArrayValue: list}
		}
		return p, nil
	}
	typ, err := scalarType(t)
	if err != nil {
		return sqlclient.Param{}, err
	}
	p := sqlclient.Param{Type: typ, Value: new(bigtablepb.Value)}
	if valid {
		p.Value = scalar(r)
	}
	return p, nil
}

// plain follows pointers, and takes the value of what is a driver.Valuer. valid says that it
// is no NULL.
func plain(r reflect.Value) (value reflect.Value, valid bool, err error) {
	valid = true
	for {
		t := r.Type()
		switch {
		case t.Kind() == reflect.Pointer && (t.Elem().Implements(valuerType) || !t.Implements(valuerType)):
			if valid = valid && !r.IsNil(); valid {
				r = r.Elem()
			} else {
				r = reflect.Zero(t.Elem())
			}
		case nullable(t) && (t.PkgPath() == "database/sql" || !valid || !r.FieldByName("Valid").Bool()):
			// Value makes an untyped nil of a NULL, and a float64 of a float32.
			valid = valid && r.FieldByName("Valid").Bool()
			r = r.Field(0)
		case t.Implements(valuerType) && !valid:
			return r, false, errUntyped
		case t.Implements(valuerType):
			v, err := r.Interface().(driver.Valuer).Value()
			if err == nil && v == nil {
				err = errUntyped
			}
			return reflect.ValueOf(v), true, err
		default:
			return r, valid, nil
		}
	}
}

// nullable tells whether a type is like sql.Null, NullInt64 and so on: its first field is the
// value, and Valid tells whether it has one.
func nullable(t reflect.Type) bool {
	if t.Kind() != reflect.Struct || !t.Implements(valuerType) || t.NumField() == 0 || !t.Field(0).IsExported() {
		return false
	}
	f, ok := t.FieldByName("Valid")
	return ok && len(f.Index) == 1 && f.Type.Kind() == reflect.Bool
}

// scalarType returns the type of a parameter of a Go type, or of a pointer to it.
func scalarType(t reflect.Type) (*bigtablepb.Type, error) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t {
	case bytesType:
		return bytesSQL, nil
	case timeType:
		return timestampSQL, nil
	case dateType:
		return dateSQL, nil
	}
	switch k := t.Kind(); {
	case k == reflect.Bool:
		return boolSQL, nil
	case k >= reflect.Int && k <= reflect.Int64, k >= reflect.Uint8 && k <= reflect.Uint32:
		return int64SQL, nil
	case k == reflect.Float32:
		return float32SQL, nil
	case k == reflect.Float64:
		return float64SQL, nil
	case k == reflect.String:
		return stringSQL, nil
	case k == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return bytesSQL, nil
	}
	return nil, fmt.Errorf("bigtable: a %v is no parameter", t)
}

// scalar returns a value of a type that scalarType has taken. A nil pointer, and nil
// bytes, are NULL.
func scalar(r reflect.Value) *bigtablepb.Value {
	if r.Kind() == reflect.Pointer {
		if r.IsNil() {
			return new(bigtablepb.Value)
		}
		r = r.Elem()
	}
	switch v := r.Interface().(type) {
	case time.Time:
		return &bigtablepb.Value{Kind: &bigtablepb.Value_TimestampValue{TimestampValue: timestamppb.New(v)}}
	case Date:
		return &bigtablepb.Value{Kind: &bigtablepb.Value_DateValue{DateValue: &date.Date{Year: int32(v.Year), Month: int32(v.Month), Day: int32(v.Day)}}}
	}
	switch k := r.Kind(); {
	case k == reflect.Bool:
		return &bigtablepb.Value{Kind: &bigtablepb.Value_BoolValue{BoolValue: r.Bool()}}
	case r.CanInt():
		return &bigtablepb.Value{Kind: &bigtablepb.Value_IntValue{IntValue: r.Int()}}
	case r.CanUint():
		return &bigtablepb.Value{Kind: &bigtablepb.Value_IntValue{IntValue: int64(r.Uint())}}
	case r.CanFloat():
		return &bigtablepb.Value{Kind: &bigtablepb.Value_FloatValue{FloatValue: r.Float()}}
	case k == reflect.String:
		return &bigtablepb.Value{Kind: &bigtablepb.Value_StringValue{StringValue: r.String()}}
	}
	if r.IsNil() {
		return new(bigtablepb.Value)
	}
	return &bigtablepb.Value{Kind: &bigtablepb.Value_BytesValue{BytesValue: r.Bytes()}}
}
