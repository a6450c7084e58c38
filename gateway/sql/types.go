package sql

import (
	"fmt"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
)

var deterministic = proto.MarshalOptions{Deterministic: true}

// typeProto returns t as clients see it: without encodings.
func typeProto(t *types.Type) *bigtablepb.Type {
	switch t.Kind {
	case types.Bool:
		return &bigtablepb.Type{Kind: &bigtablepb.Type_BoolType{BoolType: &bigtablepb.Type_Bool{}}}
	case types.Int64:
		return &bigtablepb.Type{Kind: &bigtablepb.Type_Int64Type{Int64Type: &bigtablepb.Type_Int64{}}}
	case types.Float32:
		return &bigtablepb.Type{Kind: &bigtablepb.Type_Float32Type{Float32Type: &bigtablepb.Type_Float32{}}}
	case types.Float64:
		return &bigtablepb.Type{Kind: &bigtablepb.Type_Float64Type{Float64Type: &bigtablepb.Type_Float64{}}}
	case types.String:
		return &bigtablepb.Type{Kind: &bigtablepb.Type_StringType{StringType: &bigtablepb.Type_String{}}}
	case types.Bytes:
		return &bigtablepb.Type{Kind: &bigtablepb.Type_BytesType{BytesType: &bigtablepb.Type_Bytes{}}}
	case types.Date:
		return &bigtablepb.Type{Kind: &bigtablepb.Type_DateType{DateType: &bigtablepb.Type_Date{}}}
	case types.Timestamp:
		return &bigtablepb.Type{Kind: &bigtablepb.Type_TimestampType{TimestampType: &bigtablepb.Type_Timestamp{}}}
	case types.Array:
		return &bigtablepb.Type{Kind: &bigtablepb.Type_ArrayType{ArrayType: &bigtablepb.Type_Array{ElementType: typeProto(t.Elem)}}}
	case types.Map:
		return &bigtablepb.Type{Kind: &bigtablepb.Type_MapType{MapType: &bigtablepb.Type_Map{KeyType: typeProto(t.Key), ValueType: typeProto(t.Elem)}}}
	case types.Struct:
		s := &bigtablepb.Type_Struct{Fields: make([]*bigtablepb.Type_Struct_Field, len(t.Fields))}
		for i, f := range t.Fields {
			s.Fields[i] = &bigtablepb.Type_Struct_Field{FieldName: f.Name, Type: typeProto(f.Type)}
		}
		return &bigtablepb.Type{Kind: &bigtablepb.Type_StructType{StructType: s}}
	case types.Proto:
		return &bigtablepb.Type{Kind: &bigtablepb.Type_ProtoType{ProtoType: &bigtablepb.Type_Proto{SchemaBundleId: t.Message.Bundle, MessageName: t.Message.Name}}}
	case types.Enum:
		return &bigtablepb.Type{Kind: &bigtablepb.Type_EnumType{EnumType: &bigtablepb.Type_Enum{SchemaBundleId: t.Enumeration.Bundle, EnumName: t.Enumeration.Name}}}
	}
	return &bigtablepb.Type{}
}

// metadataOf describes the columns of a result. Those without a name are called f0_,
// f1_ and so on, as in BigQuery: Node's client refuses a column that has none.
func metadataOf(columns []algebra.OutputColumn) *bigtablepb.ResultSetMetadata {
	s := &bigtablepb.ProtoSchema{Columns: make([]*bigtablepb.ColumnMetadata, len(columns))}
	used := make(map[string]bool, len(columns))
	for _, c := range columns {
		used[c.Name] = true
	}
	n := 0
	for i, c := range columns {
		name := c.Name
		for ; name == "" || c.Name == "" && used[name]; n++ {
			name = fmt.Sprintf("f%d_", n)
		}
		s.Columns[i] = &bigtablepb.ColumnMetadata{Name: name, Type: typeProto(c.Type)}
	}
	return &bigtablepb.ResultSetMetadata{Schema: &bigtablepb.ResultSetMetadata_ProtoSchema{ProtoSchema: s}}
}

// paramType returns the type of a parameter: a scalar or an array of scalars,
// as clients send them.
func paramType(pb *bigtablepb.Type) (*types.Type, *fault.Error) {
	if a := pb.GetArrayType(); a != nil {
		elem, err := scalarType(a.GetElementType())
		if err != nil {
			return nil, err.In("array_type.element_type", -1)
		}
		return types.ArrayOf(elem), nil
	}
	return scalarType(pb)
}

func scalarType(pb *bigtablepb.Type) (*types.Type, *fault.Error) {
	switch pb.GetKind().(type) {
	case *bigtablepb.Type_BoolType:
		return types.BoolType, nil
	case *bigtablepb.Type_Int64Type:
		return types.Int64Type, nil
	case *bigtablepb.Type_Float32Type:
		return types.Float32Type, nil
	case *bigtablepb.Type_Float64Type:
		return types.Float64Type, nil
	case *bigtablepb.Type_StringType:
		return types.StringType, nil
	case *bigtablepb.Type_BytesType:
		return types.BytesType, nil
	case *bigtablepb.Type_DateType:
		return types.DateType, nil
	case *bigtablepb.Type_TimestampType:
		return types.TimestampType, nil
	case nil:
		return nil, fault.New(fault.Invalid, "A type must be specified")
	}
	return nil, fault.New(fault.Invalid, "Parameters are BOOL, INT64, FLOAT32, FLOAT64, STRING, BYTES, DATE, TIMESTAMP, or arrays of these")
}
