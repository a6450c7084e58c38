package sqlshell

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/type/date"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/compat/sqlclient"
)

// A Param is a parameter of statements.
type Param struct {
	sqlclient.Param
	Text string // as it was given
}

// Params are parameters by name.
type Params map[string]Param

// paramTypes are the types of parameters.
var paramTypes = map[string]*bigtablepb.Type{
	"BOOL":      {Kind: &bigtablepb.Type_BoolType{BoolType: &bigtablepb.Type_Bool{}}},
	"INT64":     {Kind: &bigtablepb.Type_Int64Type{Int64Type: &bigtablepb.Type_Int64{}}},
	"FLOAT32":   {Kind: &bigtablepb.Type_Float32Type{Float32Type: &bigtablepb.Type_Float32{}}},
	"FLOAT64":   {Kind: &bigtablepb.Type_Float64Type{Float64Type: &bigtablepb.Type_Float64{}}},
	"STRING":    {Kind: &bigtablepb.Type_StringType{StringType: &bigtablepb.Type_String{}}},
	"BYTES":     {Kind: &bigtablepb.Type_BytesType{BytesType: &bigtablepb.Type_Bytes{}}},
	"DATE":      {Kind: &bigtablepb.Type_DateType{DateType: &bigtablepb.Type_Date{}}},
	"TIMESTAMP": {Kind: &bigtablepb.Type_TimestampType{TimestampType: &bigtablepb.Type_Timestamp{}}},
}

// Set sets a parameter from NAME=TEXT, which is a STRING, NAME:TYPE=TEXT, or
// NAME:TYPE, which is NULL. The text of an array is one of JSON.
func (p Params) Set(text string) error {
	name, value, given := strings.Cut(text, "=")
	name, typ, typed := strings.Cut(name, ":")
	name, typ = strings.TrimSpace(name), strings.ToUpper(strings.TrimSpace(typ))
	if name == "" || !given && !typed {
		return fmt.Errorf("%q is no parameter: NAME=TEXT, NAME:TYPE=TEXT and NAME:TYPE (for NULL) are", text)
	}
	if !typed {
		typ = "STRING"
	}
	elem, array := strings.CutPrefix(typ, "ARRAY<")
	elem = strings.TrimSuffix(elem, ">")
	t := paramTypes[elem]
	if t == nil {
		return fmt.Errorf("%q is no type of a parameter: BOOL, INT64, FLOAT32, FLOAT64, STRING, BYTES, DATE, TIMESTAMP and ARRAY<…> of them are", typ)
	}
	out := Param{Text: text, Param: sqlclient.Param{Type: t, Value: new(bigtablepb.Value)}}
	if array {
		out.Type = &bigtablepb.Type{Kind: &bigtablepb.Type_ArrayType{ArrayType: &bigtablepb.Type_Array{ElementType: t}}}
	}
	var err error
	switch {
	case !given:
	case array:
		out.Value, err = arrayOf(elem, value)
	default:
		out.Value, err = scalarOf(elem, value)
	}
	if err != nil {
		return fmt.Errorf("parameter %s: %w", name, err)
	}
	p[name] = out
	return nil
}

func arrayOf(elem, text string) (*bigtablepb.Value, error) {
	var items []any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&items); err != nil {
		return nil, fmt.Errorf("%q is no array of JSON", text)
	}
	list := &bigtablepb.ArrayValue{}
	for _, i := range items {
		v := new(bigtablepb.Value)
		if i != nil {
			var err error
			if v, err = scalarOf(elem, fmt.Sprint(i)); err != nil {
				return nil, err
			}
		}
		list.Values = append(list.Values, v)
	}
	return &bigtablepb.Value{Kind: &bigtablepb.Value_ArrayValue{ArrayValue: list}}, nil
}

func scalarOf(typ, text string) (*bigtablepb.Value, error) {
	no := fmt.Errorf("%q is no %s", text, typ)
	switch typ {
	case "BOOL":
		b, err := strconv.ParseBool(strings.ToLower(text))
		if err != nil {
			return nil, no
		}
		return &bigtablepb.Value{Kind: &bigtablepb.Value_BoolValue{BoolValue: b}}, nil
	case "INT64":
		n, err := strconv.ParseInt(text, 0, 64)
		if err != nil {
			return nil, no
		}
		return &bigtablepb.Value{Kind: &bigtablepb.Value_IntValue{IntValue: n}}, nil
	case "FLOAT32", "FLOAT64":
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, no
		}
		return &bigtablepb.Value{Kind: &bigtablepb.Value_FloatValue{FloatValue: f}}, nil
	case "BYTES":
		b, err := parseBytes(text)
		if err != nil {
			return nil, err
		}
		return &bigtablepb.Value{Kind: &bigtablepb.Value_BytesValue{BytesValue: b}}, nil
	case "DATE":
		d, err := time.Parse("2006-1-2", text)
		if err != nil {
			return nil, no
		}
		return &bigtablepb.Value{Kind: &bigtablepb.Value_DateValue{DateValue: &date.Date{Year: int32(d.Year()), Month: int32(d.Month()), Day: int32(d.Day())}}}, nil
	case "TIMESTAMP":
		for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999Z07", "2006-01-02 15:04:05.999999999", "2006-01-02"} {
			if ts, err := time.Parse(layout, text); err == nil {
				return &bigtablepb.Value{Kind: &bigtablepb.Value_TimestampValue{TimestampValue: timestamppb.New(ts)}}, nil
			}
		}
		return nil, no
	}
	return &bigtablepb.Value{Kind: &bigtablepb.Value_StringValue{StringValue: text}}, nil
}

// parseBytes reads bytes as they are shown: text, in which \xHH is any byte and \\ a
// backslash.
func parseBytes(text string) ([]byte, error) {
	var out []byte
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] != '\\':
			out = append(out, text[i])
		case strings.HasPrefix(text[i:], `\\`):
			out = append(out, '\\')
			i++
		case strings.HasPrefix(text[i:], `\x`) && i+4 <= len(text):
			b, err := strconv.ParseUint(text[i+2:i+4], 16, 8)
			if err != nil {
				return nil, fmt.Errorf(`%q: \x is followed by two hexadecimal digits`, text)
			}
			out = append(out, byte(b))
			i += 3
		default:
			return nil, fmt.Errorf(`%q: a backslash is written \\, another byte \xHH`, text)
		}
	}
	return out, nil
}
