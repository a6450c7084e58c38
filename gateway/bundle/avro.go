package bundle

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// An Avro is a list of Avro schemas, each complete by itself.
type Avro struct{ schemas []*schema }

// A schema is an Avro schema. Named schemas are one object however often they
// are referred to, so that schemas may be cyclic.
type schema struct {
	kind    string // a primitive type, "record", "enum", "fixed", "array", "map" or "union"
	name    string // full name of a record, enum or fixed
	aliases []string
	fields  []*field        // of a record
	of      []*schema       // branches of a union; the one of an array's items or a map's values
	symbols map[string]bool // of an enum
	dflt    bool            // an enum that has a default
	size    int64           // of a fixed
}

type field struct {
	name    string
	aliases []string
	schema  *schema
	dflt    bool
}

var primitives = []string{"null", "boolean", "int", "long", "float", "double", "bytes", "string"}

// ParseAvro reads Avro schemas in their JSON form (.avsc).
func ParseAvro(schemas []string) (*Avro, error) {
	if len(schemas) == 0 {
		return nil, errors.New("there is no schema")
	}
	a := new(Avro)
	var p avroParser
	for i, s := range schemas {
		r, err := p.document(s)
		if err != nil {
			return nil, fmt.Errorf("Error in element #%d : not a valid Avro schema: %w", i, err)
		}
		a.schemas = append(a.schemas, r)
	}
	return a, nil
}

// document reads a schema that is complete by itself.
func (p *avroParser) document(s string) (*schema, error) {
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more than one JSON value")
	}
	p.names = map[string]*schema{}
	return p.parse(v, "")
}

// maxSteps bounds what the checks of a bundle's defaults look at. Nested unions of records
// offer each level of a default in two ways and more, so that all ways may have no end.
const maxSteps = 5_000_000

type avroParser struct {
	names map[string]*schema
	steps int // of accepts, in all schemas
}

// parse reads a schema that stands inside of namespace.
func (p *avroParser) parse(v any, namespace string) (*schema, error) {
	switch v := v.(type) {
	case string:
		return p.reference(v, namespace)
	case []any:
		return p.union(v, namespace)
	case map[string]any:
		return p.object(v, namespace)
	}
	return nil, fmt.Errorf("a schema is a string, an array or an object, not %v", v)
}

func (p *avroParser) reference(name, namespace string) (*schema, error) {
	if slices.Contains(primitives, name) {
		return &schema{kind: name}, nil
	}
	full := name
	if !strings.Contains(name, ".") && namespace != "" {
		full = namespace + "." + name
	}
	if s := p.names[full]; s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("type %q is not defined", name)
}

func (p *avroParser) union(v []any, namespace string) (*schema, error) {
	s := &schema{kind: "union"}
	seen := map[string]bool{}
	for _, b := range v {
		k, err := p.parse(b, namespace)
		if err != nil {
			return nil, err
		}
		id := k.kind
		if k.name != "" {
			id = k.name
		}
		switch {
		case k.kind == "union":
			return nil, errors.New("a union stands directly in another one")
		case seen[id]:
			return nil, fmt.Errorf("a union has %q twice", id)
		}
		seen[id] = true
		s.of = append(s.of, k)
	}
	return s, nil
}

func (p *avroParser) object(v map[string]any, namespace string) (*schema, error) {
	kind, ok := v["type"].(string)
	if !ok {
		if v["type"] == nil {
			return nil, errors.New("a schema has no type")
		}
		return p.parse(v["type"], namespace) // {"type": {"type": "string"}} is common
	}
	switch kind {
	case "array", "map":
		key := map[string]string{"array": "items", "map": "values"}[kind]
		if v[key] == nil {
			return nil, fmt.Errorf("a schema of type %s has no %s", kind, key)
		}
		of, err := p.parse(v[key], namespace)
		return &schema{kind: kind, of: []*schema{of}}, err
	case "record", "error", "enum", "fixed":
		return p.named(kind, v, namespace)
	}
	return p.reference(kind, namespace)
}

func (p *avroParser) named(kind string, v map[string]any, namespace string) (*schema, error) {
	name, _ := v["name"].(string)
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		namespace = name[:i]
	} else if ns, ok := v["namespace"].(string); ok {
		namespace = ns
	}
	full := name
	if !strings.Contains(name, ".") && namespace != "" {
		full = namespace + "." + name
	}
	for part := range strings.SplitSeq(full, ".") {
		if !isAvroName(part) {
			return nil, fmt.Errorf("%q is no name", full)
		}
	}
	if slices.Contains(primitives, full) {
		return nil, fmt.Errorf("type %q cannot be defined", full)
	}
	if p.names[full] != nil {
		return nil, fmt.Errorf("type %q is defined twice", full)
	}
	s := &schema{kind: kind, name: full}
	if kind == "error" {
		s.kind = "record"
	}
	p.names[full] = s // before the fields, which may refer to it
	var err error
	if s.aliases, err = aliases(v); err != nil {
		return nil, err
	}
	for i, a := range s.aliases {
		if !strings.Contains(a, ".") && namespace != "" {
			s.aliases[i] = namespace + "." + a
		}
	}
	switch s.kind {
	case "record":
		err = p.record(s, v, namespace)
	case "enum":
		err = s.enum(v)
	case "fixed":
		err = s.fixed(v)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %q: %w", kind, full, err)
	}
	return s, nil
}

func (p *avroParser) record(s *schema, v map[string]any, namespace string) error {
	list, ok := v["fields"].([]any)
	if !ok {
		return errors.New("there are no fields")
	}
	seen := map[string]bool{}
	for i, x := range list {
		o, _ := x.(map[string]any)
		f := new(field)
		f.name, _ = o["name"].(string)
		switch {
		case !isAvroName(f.name):
			return fmt.Errorf("field %d: %q is no name", i, f.name)
		case seen[f.name]:
			return fmt.Errorf("field %q is there twice", f.name)
		case o["type"] == nil:
			return fmt.Errorf("field %q has no type", f.name)
		}
		seen[f.name] = true
		var err error
		if f.schema, err = p.parse(o["type"], namespace); err == nil {
			f.aliases, err = aliases(o)
		}
		if err != nil {
			return fmt.Errorf("field %q: %w", f.name, err)
		}
		if order, ok := o["order"]; ok && order != "ascending" && order != "descending" && order != "ignore" {
			return fmt.Errorf("field %q: the order %v is unknown", f.name, order)
		}
		if d, ok := o["default"]; ok {
			if !p.accepts(f.schema, d) {
				if p.steps > maxSteps {
					return fmt.Errorf("field %q: the default is too complex to tell whether it is a %s", f.name, f.schema)
				}
				return fmt.Errorf("field %q: the default is no %s", f.name, f.schema)
			}
			f.dflt = true
		}
		s.fields = append(s.fields, f)
	}
	return nil
}

func (s *schema) enum(v map[string]any) error {
	list, ok := v["symbols"].([]any)
	if !ok {
		return errors.New("there are no symbols")
	}
	s.symbols = make(map[string]bool, len(list))
	for _, x := range list {
		name, _ := x.(string)
		switch {
		case !isAvroName(name):
			return fmt.Errorf("%v is no name", x)
		case s.symbols[name]:
			return fmt.Errorf("symbol %q is there twice", name)
		}
		s.symbols[name] = true
	}
	if d, ok := v["default"]; ok {
		if name, _ := d.(string); !s.symbols[name] {
			return fmt.Errorf("the default %v is no symbol", d)
		}
		s.dflt = true
	}
	return nil
}

func (s *schema) fixed(v map[string]any) error {
	n, _ := v["size"].(json.Number)
	size, err := n.Int64()
	if err != nil || size < 0 {
		return errors.New("the size is not a number of bytes")
	}
	s.size = size
	return nil
}

func aliases(v map[string]any) ([]string, error) {
	x, ok := v["aliases"]
	if !ok {
		return nil, nil
	}
	list, ok := x.([]any)
	if !ok {
		return nil, errors.New("aliases are not a list")
	}
	var out []string
	for _, x := range list {
		name, ok := x.(string)
		if !ok {
			return nil, fmt.Errorf("the alias %v is no name", x)
		}
		out = append(out, name)
	}
	return out, nil
}

// isAvroName matches [A-Za-z_][A-Za-z0-9_]*.
func isAvroName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' || i > 0 && '0' <= c && c <= '9') {
			return false
		}
	}
	return s != ""
}

// String names the schema.
func (s *schema) String() string {
	if s.name != "" {
		return s.name
	}
	return s.kind
}

// accepts tells whether v may be the default of a field of schema s. Beyond maxSteps it is not.
func (p *avroParser) accepts(s *schema, v any) bool {
	if p.steps++; p.steps > maxSteps {
		return false
	}
	switch s.kind {
	case "null":
		return v == nil
	case "boolean":
		_, ok := v.(bool)
		return ok
	case "int", "long":
		n, _ := v.(json.Number)
		i, err := n.Int64()
		return err == nil && (s.kind == "long" || i == int64(int32(i)))
	case "float", "double":
		n, _ := v.(json.Number)
		_, err := n.Float64()
		return err == nil
	case "string":
		_, ok := v.(string)
		return ok
	case "bytes", "fixed":
		// Each code point is a byte.
		b, ok := v.(string)
		p.steps += len(b)
		n := int64(0)
		for _, r := range b {
			ok = ok && r <= 0xFF
			n++
		}
		return ok && (s.kind == "bytes" || n == s.size)
	case "enum":
		name, ok := v.(string)
		return ok && s.symbols[name]
	case "union":
		return slices.ContainsFunc(s.of, func(b *schema) bool { return p.accepts(b, v) })
	case "array":
		list, ok := v.([]any)
		return ok && !slices.ContainsFunc(list, func(x any) bool { return !p.accepts(s.of[0], x) })
	case "map":
		m, ok := v.(map[string]any)
		for _, x := range m {
			ok = ok && p.accepts(s.of[0], x)
		}
		return ok
	case "record":
		m, ok := v.(map[string]any)
		p.steps += len(s.fields)
		for _, f := range s.fields {
			x, given := m[f.name]
			ok = ok && (given && p.accepts(f.schema, x) || !given && f.dflt)
		}
		return ok
	}
	return false
}
