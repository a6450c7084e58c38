package rest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
)

// AppendValue writes a value of a query's result as plain JSON. Bytes are text; if
// they are no UTF-8 they are {"base64": …}, and in a key of a map have \xHH for what
// is none. An INT64 is a number with all its digits, NaN and infinities are text,
// structs are objects.
func AppendValue(b []byte, v *bigtablepb.Value, t *bigtablepb.Type) []byte {
	switch k := v.GetKind().(type) {
	case nil:
		return append(b, "null"...)
	case *bigtablepb.Value_BoolValue:
		return strconv.AppendBool(b, k.BoolValue)
	case *bigtablepb.Value_IntValue:
		return strconv.AppendInt(b, k.IntValue, 10)
	case *bigtablepb.Value_FloatValue:
		if math.IsNaN(k.FloatValue) || math.IsInf(k.FloatValue, 0) {
			return append(b, quoted(FloatText(k.FloatValue, 64))...)
		}
		return append(b, FloatText(k.FloatValue, bits(t))...)
	case *bigtablepb.Value_StringValue:
		return append(b, quoted(k.StringValue)...)
	case *bigtablepb.Value_BytesValue:
		if utf8.Valid(k.BytesValue) {
			return append(b, quoted(string(k.BytesValue))...)
		}
		return append(append(append(b, `{"base64":`...), quoted(base64.StdEncoding.EncodeToString(k.BytesValue))...), '}')
	case *bigtablepb.Value_TimestampValue:
		return append(b, quoted(k.TimestampValue.AsTime().Format(time.RFC3339Nano))...)
	case *bigtablepb.Value_DateValue:
		return append(b, quoted(fmt.Sprintf("%04d-%02d-%02d", k.DateValue.GetYear(), k.DateValue.GetMonth(), k.DateValue.GetDay()))...)
	case *bigtablepb.Value_ArrayValue:
		return appendList(b, k.ArrayValue.GetValues(), t)
	}
	return append(b, "null"...)
}

func bits(t *bigtablepb.Type) int {
	if t.GetFloat32Type() != nil {
		return 32
	}
	return 64
}

func appendList(b []byte, list []*bigtablepb.Value, t *bigtablepb.Type) []byte {
	switch kind := t.GetKind().(type) {
	case *bigtablepb.Type_MapType:
		b = append(b, '{')
		n := 0
		for _, e := range list {
			kv := e.GetArrayValue().GetValues()
			if len(kv) != 2 {
				continue
			}
			if n++; n > 1 {
				b = append(b, ',')
			}
			b = append(append(b, quoted(keyText(kv[0]))...), ':')
			b = AppendValue(b, kv[1], kind.MapType.GetValueType())
		}
		return append(b, '}')
	case *bigtablepb.Type_StructType:
		fields := kind.StructType.GetFields()
		b = append(b, '{')
		used := map[string]bool{}
		for i, e := range list[:min(len(list), len(fields))] {
			name := fields[i].GetFieldName()
			if name == "" || used[name] {
				name = fmt.Sprintf("field_%d", i+1)
			}
			used[name] = true
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(b, quoted(name)...), ':')
			b = AppendValue(b, e, fields[i].GetType())
		}
		return append(b, '}')
	}
	b = append(b, '[')
	for i, e := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendValue(b, e, t.GetArrayType().GetElementType())
	}
	return append(b, ']')
}

func quoted(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string has JSON
	}
	return b
}

func keyText(v *bigtablepb.Value) string {
	switch k := v.GetKind().(type) {
	case *bigtablepb.Value_BytesValue:
		return BytesText(k.BytesValue)
	case *bigtablepb.Value_StringValue:
		return k.StringValue
	case *bigtablepb.Value_IntValue:
		return strconv.FormatInt(k.IntValue, 10)
	}
	return "null"
}

// BytesText writes bytes as text: what cannot be printed is \xHH, a backslash \\.
func BytesText(b []byte) string {
	var out strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case r == '\\':
			out.WriteString(`\\`)
		case r == utf8.RuneError && n == 1 || !unicode.IsPrint(r):
			for _, c := range b[:n] {
				fmt.Fprintf(&out, `\x%02x`, c)
			}
		default:
			out.Write(b[:n])
		}
		b = b[n:]
	}
	return out.String()
}

// FloatText writes a float with as many digits as tell it from others of so many
// bits.
func FloatText(f float64, bits int) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	return strconv.FormatFloat(f, 'g', -1, bits)
}

// TypeName writes a type as SQL does.
func TypeName(t *bigtablepb.Type) string {
	switch k := t.GetKind().(type) {
	case *bigtablepb.Type_BoolType:
		return "BOOL"
	case *bigtablepb.Type_Int64Type:
		return "INT64"
	case *bigtablepb.Type_Float32Type:
		return "FLOAT32"
	case *bigtablepb.Type_Float64Type:
		return "FLOAT64"
	case *bigtablepb.Type_StringType:
		return "STRING"
	case *bigtablepb.Type_BytesType:
		return "BYTES"
	case *bigtablepb.Type_DateType:
		return "DATE"
	case *bigtablepb.Type_TimestampType:
		return "TIMESTAMP"
	case *bigtablepb.Type_ArrayType:
		return "ARRAY<" + TypeName(k.ArrayType.GetElementType()) + ">"
	case *bigtablepb.Type_MapType:
		return "MAP<" + TypeName(k.MapType.GetKeyType()) + ", " + TypeName(k.MapType.GetValueType()) + ">"
	case *bigtablepb.Type_StructType:
		var fields []string
		for _, f := range k.StructType.GetFields() {
			fields = append(fields, strings.TrimSpace(f.GetFieldName()+" "+TypeName(f.GetType())))
		}
		return "STRUCT<" + strings.Join(fields, ", ") + ">"
	case *bigtablepb.Type_ProtoType:
		return k.ProtoType.GetMessageName()
	case *bigtablepb.Type_EnumType:
		return k.EnumType.GetEnumName()
	}
	return "?"
}
