package sqldriver

import (
	"context"
	"database/sql/driver"
	"io"
	"reflect"
	"strconv"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/compat/sqlclient"
)

// rows are those of a statement that is under way.
type rows struct {
	columns sqlclient.Columns
	cancel  context.CancelFunc
	values  chan []*bigtablepb.Value
	err     error // once values is closed
}

// ahead is how many rows are taken before the caller asks.
const ahead = 256

// QueryContext runs a statement. It returns when the columns are known.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	params := sqlclient.Params{}
	for _, a := range args {
		p, err := param(a.Value)
		if err != nil {
			return nil, err
		}
		name := a.Name
		if name == "" {
			name = "p" + strconv.Itoa(a.Ordinal)
		}
		params[name] = p
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &rows{cancel: cancel, values: make(chan []*bigtablepb.Value, ahead)}
	began := make(chan error, 1) // the first that is sent counts
	go func() {
		defer close(r.values)
		r.err = c.client.Query(ctx, query, params, func(cols sqlclient.Columns) error {
			r.columns = cols
			began <- nil
			return nil
		}, func(v []*bigtablepb.Value) error {
			select {
			case r.values <- v:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		select {
		case began <- r.err:
		default: // it had begun
		}
	}()
	if err := <-began; err != nil {
		cancel()
		return nil, err
	}
	return r, nil
}

// Columns implements driver.Rows.
func (r *rows) Columns() []string {
	out := make([]string, len(r.columns))
	for i, c := range r.columns {
		out[i] = c.GetName()
	}
	return out
}

// Close ends the statement.
func (r *rows) Close() error {
	r.cancel()
	for range r.values { // until it has ended
	}
	return nil
}

// Next implements driver.Rows.
func (r *rows) Next(dest []driver.Value) error {
	vs, ok := <-r.values
	if !ok {
		if r.err != nil {
			return r.err
		}
		return io.EOF
	}
	for i, v := range vs {
		dest[i] = goValue(v, r.columns[i].GetType())
	}
	return nil
}

// ColumnTypeDatabaseTypeName implements driver.RowsColumnTypeDatabaseTypeName.
func (r *rows) ColumnTypeDatabaseTypeName(i int) string { return typeName(r.columns[i].GetType()) }

// ColumnTypeScanType implements driver.RowsColumnTypeScanType.
func (r *rows) ColumnTypeScanType(i int) reflect.Type {
	switch r.columns[i].GetType().GetKind().(type) {
	case *bigtablepb.Type_Int64Type, *bigtablepb.Type_EnumType:
		return reflect.TypeFor[int64]()
	case *bigtablepb.Type_Float32Type, *bigtablepb.Type_Float64Type:
		return reflect.TypeFor[float64]()
	case *bigtablepb.Type_BoolType:
		return reflect.TypeFor[bool]()
	case *bigtablepb.Type_StringType:
		return reflect.TypeFor[string]()
	case *bigtablepb.Type_BytesType, *bigtablepb.Type_ProtoType:
		return reflect.TypeFor[[]byte]()
	case *bigtablepb.Type_TimestampType, *bigtablepb.Type_DateType:
		return reflect.TypeFor[time.Time]()
	case *bigtablepb.Type_MapType:
		return reflect.TypeFor[map[string]any]()
	}
	return reflect.TypeFor[[]any]()
}

// goValue returns a value as doc.go says.
func goValue(v *bigtablepb.Value, t *bigtablepb.Type) any {
	switch k := v.GetKind().(type) {
	case *bigtablepb.Value_IntValue:
		return k.IntValue
	case *bigtablepb.Value_FloatValue:
		return k.FloatValue
	case *bigtablepb.Value_BoolValue:
		return k.BoolValue
	case *bigtablepb.Value_StringValue:
		return k.StringValue
	case *bigtablepb.Value_BytesValue:
		return k.BytesValue
	case *bigtablepb.Value_TimestampValue:
		return k.TimestampValue.AsTime()
	case *bigtablepb.Value_DateValue:
		return time.Date(int(k.DateValue.GetYear()), time.Month(k.DateValue.GetMonth()), int(k.DateValue.GetDay()), 0, 0, 0, 0, time.UTC)
	case *bigtablepb.Value_ArrayValue:
		list := k.ArrayValue.GetValues()
		if m := t.GetMapType(); m != nil {
			out := make(map[string]any, len(list))
			for _, e := range list {
				if kv := e.GetArrayValue().GetValues(); len(kv) == 2 {
					out[keyText(kv[0])] = goValue(kv[1], m.GetValueType())
				}
			}
			return out
		}
		out := make([]any, len(list))
		fields := t.GetStructType().GetFields()
		for i, e := range list {
			elem := t.GetArrayType().GetElementType()
			if i < len(fields) {
				elem = fields[i].GetType()
			}
			out[i] = goValue(e, elem)
		}
		return out
	}
	return nil
}

func keyText(v *bigtablepb.Value) string {
	switch k := v.GetKind().(type) {
	case *bigtablepb.Value_StringValue:
		return k.StringValue
	case *bigtablepb.Value_BytesValue:
		return string(k.BytesValue)
	case *bigtablepb.Value_IntValue:
		return strconv.FormatInt(k.IntValue, 10)
	}
	return ""
}

// typeName is the name of a type, of its kind only where it has parts.
func typeName(t *bigtablepb.Type) string {
	switch t.GetKind().(type) {
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
		return "ARRAY"
	case *bigtablepb.Type_MapType:
		return "MAP"
	case *bigtablepb.Type_StructType:
		return "STRUCT"
	case *bigtablepb.Type_ProtoType:
		return "PROTO"
	case *bigtablepb.Type_EnumType:
		return "ENUM"
	}
	return ""
}
