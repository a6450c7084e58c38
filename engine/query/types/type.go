package types

import (
	"slices"
	"strings"
)

// A Kind is what sort of type a Type is.
type Kind uint8

// The kinds. Those up to Timestamp, and Enum, are scalar.
const (
	Invalid Kind = iota
	Bool
	Int64
	Float32
	Float64
	String
	Bytes
	Date      // days since 1970-01-01
	Timestamp // microseconds since 1970-01-01 00:00:00 UTC
	Array
	Struct
	Map
	Proto
	Enum
)

// A Type is the type of an expression or a column. Types are immutable, and are
// compared with Equal.
type Type struct {
	Kind Kind
	// Elem is the type of an Array's elements or of a Map's values.
	Elem *Type
	// Key is the type of a Map's keys.
	Key *Type
	// Fields are those of a Struct, in order. Names may be empty or repeat.
	Fields []Field
	// Message describes a Proto, and Enumeration an Enum.
	Message     *Message
	Enumeration *Enumeration
}

// A Field is one field of a Struct.
type Field struct {
	Name string // as it was written; names are compared without regard to case
	Type *Type
}

// A Message is a protocol buffer type of a schema bundle.
type Message struct {
	Bundle string // id of the schema bundle
	Name   string // full name, package.Message
	Fields []ProtoField
}

// A ProtoField is one field of a Message.
type ProtoField struct {
	Name     string
	Number   int32
	Wire     ProtoWire
	Repeated bool
	// HasPresence is false for a field of proto3 without "optional": has_NAME is
	// refused then.
	HasPresence bool
	// Type is what the field has in SQL: an Array if Repeated. Nil if it has none.
	Type *Type
	// Default is the field's default value, NULL for a message.
	Default Value
}

// A ProtoWire says how the value of a field is encoded (protobuf's field types).
type ProtoWire uint8

// The encodings.
const (
	WireVarint          ProtoWire = iota + 1 // int32, int64, uint32, uint64, bool, enum
	WireZigZag                               // sint32, sint64
	WireFixed32                              // sfixed32
	WireFixed64                              // fixed64, sfixed64
	WireFloat                                // float
	WireDouble                               // double
	WireBytes                                // string, bytes, message
	WireGroup                                // group
	WireUnsigned32                           // uint32: not sign-extended
	WireUnsignedFixed32                      // fixed32
)

// An Enumeration is an enum type of a schema bundle.
type Enumeration struct {
	Bundle string
	Name   string
	Values []EnumValue
	// Open is set of an enum of proto3: numbers without a name are values of it, too.
	Open bool
}

// An EnumValue is one name of an Enumeration. Several may have one Number.
type EnumValue struct {
	Name   string
	Number int32
}

// The scalar types that need no further description.
var (
	BoolType      = &Type{Kind: Bool}
	Int64Type     = &Type{Kind: Int64}
	Float32Type   = &Type{Kind: Float32}
	Float64Type   = &Type{Kind: Float64}
	StringType    = &Type{Kind: String}
	BytesType     = &Type{Kind: Bytes}
	DateType      = &Type{Kind: Date}
	TimestampType = &Type{Kind: Timestamp}
)

// ArrayOf returns ARRAY<elem>.
func ArrayOf(elem *Type) *Type { return &Type{Kind: Array, Elem: elem} }

// MapOf returns MAP<key, elem>.
func MapOf(key, elem *Type) *Type { return &Type{Kind: Map, Key: key, Elem: elem} }

// StructOf returns STRUCT<fields>.
func StructOf(fields ...Field) *Type { return &Type{Kind: Struct, Fields: fields} }

// Equal tells whether t and u are the same type. Names of a struct's fields
// count, without regard to case.
func (t *Type) Equal(u *Type) bool { return t.equal(u, true) }

// Equivalent is Equal without regard to the names of fields.
func (t *Type) Equivalent(u *Type) bool { return t.equal(u, false) }

func (t *Type) equal(u *Type, names bool) bool {
	if t == u {
		return true
	}
	if t == nil || u == nil || t.Kind != u.Kind {
		return false
	}
	switch t.Kind {
	case Array:
		return t.Elem.equal(u.Elem, names)
	case Map:
		return t.Key.equal(u.Key, names) && t.Elem.equal(u.Elem, names)
	case Struct:
		return slices.EqualFunc(t.Fields, u.Fields, func(a, b Field) bool {
			return (!names || strings.EqualFold(a.Name, b.Name)) && a.Type.equal(b.Type, names)
		})
	case Proto:
		return t.Message.Bundle == u.Message.Bundle && t.Message.Name == u.Message.Name
	case Enum:
		return t.Enumeration.Bundle == u.Enumeration.Bundle && t.Enumeration.Name == u.Enumeration.Name
	}
	return true
}

var kindNames = [...]string{
	Invalid: "INVALID", Bool: "BOOL", Int64: "INT64", Float32: "FLOAT32", Float64: "FLOAT64", String: "STRING", Bytes: "BYTES",
	Date: "DATE", Timestamp: "TIMESTAMP", Array: "ARRAY", Struct: "STRUCT", Map: "MAP", Proto: "PROTO", Enum: "ENUM",
}

// String returns the kind's name in messages.
func (k Kind) String() string { return kindNames[k] }

// String returns the type as messages and SQL write it: ARRAY<STRUCT<a INT64>>.
func (t *Type) String() string {
	if t == nil {
		return "INVALID"
	}
	switch t.Kind {
	case Array:
		return "ARRAY<" + t.Elem.String() + ">"
	case Map:
		return "MAP<" + t.Key.String() + ", " + t.Elem.String() + ">"
	case Struct:
		var b strings.Builder
		b.WriteString("STRUCT<")
		for i, f := range t.Fields {
			if i > 0 {
				b.WriteString(", ")
			}
			if f.Name != "" {
				b.WriteString(QuoteIdentifier(f.Name))
				b.WriteByte(' ')
			}
			b.WriteString(f.Type.String())
		}
		b.WriteByte('>')
		return b.String()
	case Proto:
		return t.Message.Name
	case Enum:
		return t.Enumeration.Name
	}
	return t.Kind.String()
}

// QuoteIdentifier returns name as SQL writes it, in backquotes if it has to be.
func QuoteIdentifier(name string) string {
	plain := name != ""
	for i, c := range []byte(name) {
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (i == 0 || c < '0' || c > '9') {
			plain = false
		}
	}
	if plain {
		return name
	}
	return "`" + strings.NewReplacer("\\", "\\\\", "`", "\\`", "\n", "\\n", "\r", "\\r").Replace(name) + "`"
}

// IsNumeric tells whether t is INT64, FLOAT32 or FLOAT64.
func (t *Type) IsNumeric() bool { return t.Kind == Int64 || t.IsFloat() }

// IsFloat tells whether t is FLOAT32 or FLOAT64.
func (t *Type) IsFloat() bool { return t.Kind == Float32 || t.Kind == Float64 }

// SupportsEquality tells whether values of t can be compared with =.
func (t *Type) SupportsEquality() bool {
	switch t.Kind {
	case Array:
		return t.Elem.SupportsEquality()
	case Struct:
		return !slices.ContainsFunc(t.Fields, func(f Field) bool { return !f.Type.SupportsEquality() })
	case Map, Proto, Invalid:
		return false
	}
	return true
}

// SupportsOrder tells whether values of t can be compared with < and sorted.
func (t *Type) SupportsOrder() bool {
	switch t.Kind {
	case Array:
		return t.Elem.Kind != Array && t.Elem.SupportsOrder()
	case Struct, Map, Proto, Invalid:
		return false
	}
	return true
}

// SupportsGrouping tells whether GROUP BY and DISTINCT take values of t.
func (t *Type) SupportsGrouping() bool {
	switch t.Kind {
	case Array:
		return t.Elem.SupportsGrouping()
	case Struct:
		return !slices.ContainsFunc(t.Fields, func(f Field) bool { return !f.Type.SupportsGrouping() })
	case Map, Proto, Invalid:
		return false
	}
	return true
}
