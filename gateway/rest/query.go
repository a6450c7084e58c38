package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trestledb/trestle/engine/fault"
)

// Queries are PrepareQuery and ExecuteQuery as Google's front ends would have them,
// the answers of the latter in one array. Its rows are protobuf messages in base64
// there, so there is also a form for people and scripts, :query, whose answer is
//
//	{"columns": [{"name", "type"}], "rows": [[value, …], …]}
//
// with the values in plain JSON. The request is the same, with the text of the query, and
// the types and values of its parameters.
const (
	preparePath = "/v2/{instance_name=projects/*/instances/*}:prepareQuery"
	executePath = "/v2/{instance_name=projects/*/instances/*}:executeQuery"
	queryPath   = "/v2/{instance_name=projects/*/instances/*}:query"
)

// errSent says that the answer was written.
var errSent = errors.New("the answer was written")

// answers write the answer of a method that has many.
type answers interface {
	// add returns what an encoded answer adds to the body, and end what is at its end:
	// with what went wrong behind its beginning, if err is not nil.
	add(encoded []byte) ([]byte, error)
	end(err error) []byte
}

func queryRoutes() ([]route, error) {
	methods := bigtablepb.File_google_bigtable_v2_bigtable_proto.Services().ByName("Bigtable").Methods()
	prepare, execute := methods.ByName("PrepareQuery"), methods.ByName("ExecuteQuery")
	var out []route
	for _, r := range []struct {
		method  protoreflect.MethodDescriptor
		path    string
		answers func(protojson.MarshalOptions) answers
	}{
		{prepare, preparePath, nil},
		{execute, executePath, func(o protojson.MarshalOptions) answers { return &messages{out: o} }},
		{execute, queryPath, func(protojson.MarshalOptions) answers { return new(table) }},
	} {
		rt, err := newRoute(r.method, &annotations.HttpRule{Pattern: &annotations.HttpRule_Post{Post: r.path}, Body: "*"})
		if err != nil {
			return nil, err
		}
		rt.answers = r.answers
		out = append(out, rt)
	}
	return out, nil
}

// stream answers a request whose method has many answers. It returns errSent behind
// the first byte.
func (h *Handler) stream(ctx context.Context, w http.ResponseWriter, rt *route, md metadata.MD, decode func(proto.Message) error, out protojson.MarshalOptions) error {
	a := rt.answers(out)
	control := http.NewResponseController(w)
	begun := false
	err := h.caller.(Streamer).Stream(ctx, rt.rpc, md, decode, func(encoded []byte) error {
		b, err := a.add(encoded)
		if err != nil || len(b) == 0 {
			return err
		}
		begun = true
		if _, err := w.Write(b); err != nil {
			return err
		}
		_ = control.Flush() // or it comes later
		return nil
	})
	if err != nil && !begun {
		return err
	}
	_, _ = w.Write(a.end(err))
	return errSent
}

// errorObject is {"error": …} without the braces.
func errorObject(err error) []byte {
	_, b := errorJSON(err)
	var out bytes.Buffer
	if json.Compact(&out, b) != nil {
		return nil
	}
	return out.Bytes()[1 : out.Len()-1]
}

// messages are an array of the answers.
type messages struct {
	out protojson.MarshalOptions
	n   int
}

func (a *messages) add(encoded []byte) ([]byte, error) {
	m := new(bigtablepb.ExecuteQueryResponse)
	if err := proto.Unmarshal(encoded, m); err != nil {
		return nil, err
	}
	b, err := a.out.Marshal(m)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.WriteByte("[,"[min(a.n, 1)])
	if err := json.Compact(&out, b); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	a.n++
	return out.Bytes(), nil
}

func (a *messages) end(err error) []byte {
	var b []byte
	if a.n == 0 {
		b = append(b, '[')
	}
	if err != nil {
		b = append(append(append(b, ",{"...), errorObject(err)...), '}')
	}
	return append(b, "]\n"...)
}

// A table is columns and rows.
type table struct {
	columns []*bigtablepb.ColumnMetadata
	batch   []byte
	rows    int
}

// columnJSON describes a column.
type columnJSON struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

func (a *table) add(encoded []byte) ([]byte, error) {
	m := new(bigtablepb.ExecuteQueryResponse)
	if err := proto.Unmarshal(encoded, m); err != nil {
		return nil, err
	}
	if md := m.GetMetadata(); md != nil {
		a.columns = md.GetProtoSchema().GetColumns()
		list := make([]columnJSON, len(a.columns))
		for i, c := range a.columns {
			list[i] = columnJSON{c.GetName(), TypeName(c.GetType())}
		}
		var b bytes.Buffer
		b.WriteString(`{"columns":`)
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(list); err != nil {
			return nil, err
		}
		return append(bytes.TrimSpace(b.Bytes()), ",\n\"rows\":["...), nil
	}
	if a.columns == nil {
		// A prepared query, or one that goes on, does not begin with its columns.
		return nil, fault.InvalidField("query", "The request must have the text of a query, and neither a prepared query nor a resume token")
	}
	r := m.GetResults()
	a.batch = append(a.batch, r.GetProtoRowsBatch().GetBatchData()...)
	if r.BatchChecksum == nil {
		return nil, nil
	}
	rows := new(bigtablepb.ProtoRows)
	if err := proto.Unmarshal(a.batch, rows); err != nil {
		return nil, err
	}
	a.batch = a.batch[:0]
	var b []byte
	n := len(a.columns)
	for i, v := range rows.GetValues() {
		switch {
		case i%n != 0:
			b = append(b, ',')
		case a.rows > 0:
			b = append(b, ",\n["...)
		default:
			b = append(b, "\n["...)
		}
		b = AppendValue(b, v, a.columns[i%n].GetType())
		if i%n == n-1 {
			b = append(b, ']')
			a.rows++
		}
	}
	return b, nil
}

func (a *table) end(err error) []byte {
	b := []byte("]")
	if err != nil {
		b = append(append(b, ','), errorObject(err)...)
	}
	return append(b, "}\n"...)
}
