package rest

import (
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/trestledb/trestle/engine/fault"
)

// maxDepth bounds how deep the messages of a body may be nested. Filters of
// authorized views and garbage collection rules are the deepest, at 20.
const maxDepth = 100

// fieldOf returns a field by either of its names.
func fieldOf(m protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if f := m.Fields().ByName(protoreflect.Name(name)); f != nil {
		return f
	}
	return m.Fields().ByJSONName(name)
}

// lookup returns the fields on the way to a path and the one at its end, nil if
// there is none.
func lookup(m protoreflect.MessageDescriptor, path string) (way []protoreflect.FieldDescriptor, leaf protoreflect.FieldDescriptor) {
	for {
		name, rest, more := strings.Cut(path, ".")
		f := fieldOf(m, name)
		if f == nil || !more {
			return way, f
		}
		if f.Message() == nil || f.IsList() || f.IsMap() {
			return way, nil
		}
		way, m, path = append(way, f), f.Message(), rest
	}
}

// at returns the message at the end of a way, which it makes if need be.
func at(m protoreflect.Message, way []protoreflect.FieldDescriptor) protoreflect.Message {
	for _, f := range way {
		m = m.Mutable(f).Message()
	}
	return m
}

// bindBody reads JSON into the field of the route's body.
func (r *route) bindBody(m proto.Message, body []byte) error {
	if len(body) == 0 {
		return nil
	}
	if r.body == "" {
		return fault.New(fault.Invalid, "Request body is not allowed for this method")
	}
	if r.body != "*" {
		m = m.ProtoReflect().Mutable(fieldOf(r.input, r.body)).Message().Interface()
	}
	if err := (protojson.UnmarshalOptions{RecursionLimit: maxDepth}).Unmarshal(body, m); err != nil {
		return fault.New(fault.Invalid, "Invalid JSON payload received. %s", plain(err))
	}
	return nil
}

// plain is the text of an error of protojson, which is made to differ from one
// build to the next.
func plain(err error) string {
	text := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	return strings.TrimPrefix(text, "proto: ")
}

// bindQuery sets the fields that the query names.
func (r *route) bindQuery(m proto.Message, query url.Values) error {
	for _, name := range slices.Sorted(maps.Keys(query)) {
		way, leaf := lookup(r.input, name)
		if leaf == nil || r.body == "*" || leaf.IsMap() || r.body != "" && root(way, leaf) == fieldOf(r.input, r.body) {
			return fault.InvalidField(name, "Invalid JSON payload received. Unknown name \"%s\": Cannot bind query parameter. Field '%s' could not be found in request message.",
				shorten(name), shorten(name))
		}
		into := at(m.ProtoReflect(), way)
		for _, value := range query[name] {
			if err := bind(into, leaf, value); err != nil {
				return fault.InvalidField(name, "Invalid value at '%s' (%s), \"%s\"", shorten(name), typeName(leaf), shorten(value))
			}
		}
	}
	return nil
}

func root(way []protoreflect.FieldDescriptor, leaf protoreflect.FieldDescriptor) protoreflect.FieldDescriptor {
	if len(way) > 0 {
		return way[0]
	}
	return leaf
}

func typeName(f protoreflect.FieldDescriptor) string {
	switch {
	case f.Message() != nil:
		return string(f.Message().FullName())
	case f.Enum() != nil:
		return string(f.Enum().FullName())
	}
	return "TYPE_" + strings.ToUpper(f.Kind().String())
}

// bind sets a field, or adds to it if it is repeated, from text: by way of JSON,
// which has a text for what can be in a query.
func bind(m protoreflect.Message, f protoreflect.FieldDescriptor, text string) error {
	if f.Message() != nil && f.Message().FullName() == (*fieldmaskpb.FieldMask)(nil).ProtoReflect().Descriptor().FullName() {
		text = camelMask(text)
	}
	value, err := json.Marshal(text)
	if err != nil {
		return err
	}
	raw := false
	switch f.Kind() {
	case protoreflect.BoolKind:
		// Clients in Python write True.
		text = strings.ToLower(text)
		raw = text == "true" || text == "false"
	case protoreflect.EnumKind:
		_, err := strconv.ParseInt(text, 10, 32)
		raw = err == nil
	}
	if raw {
		value = []byte(text)
	}
	if f.IsList() {
		value = slices.Concat([]byte("["), value, []byte("]"))
	}
	part := m.New().Interface()
	if err := protojson.Unmarshal(slices.Concat([]byte(`{"`+f.JSONName()+`":`), value, []byte("}")), part); err != nil {
		return err
	}
	proto.Merge(m.Interface(), part)
	return nil
}

// camelMask writes a mask of fields as JSON has it. Google's servers take the
// names of the protos too, and some clients send them.
func camelMask(text string) string {
	var b strings.Builder
	up := false
	for _, c := range []byte(text) {
		switch {
		case c == '_':
			up = true
			continue
		case up && 'a' <= c && c <= 'z':
			c -= 'a' - 'A'
		}
		up = false
		b.WriteByte(c)
	}
	return b.String()
}

// bindPath sets the fields that the path names, in place of what body and query
// have said of them.
func (r *route) bindPath(m proto.Message, values []string) {
	for i, path := range r.fields {
		way, leaf := lookup(r.input, path)
		at(m.ProtoReflect(), way).Set(leaf, protoreflect.ValueOfString(values[i]))
	}
}

// shorten bounds what an answer repeats of a request.
func shorten(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}
