package sql

import (
	"context"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway/bundle"
)

// A schemaBundle is the schema bundle of a table as it was read.
type schemaBundle struct {
	id, etag string
	proto    *bundle.Proto

	mu       sync.Mutex
	messages map[protoreflect.FullName]*types.Type
}

// maxBundles bounds the bundles that are remembered.
const maxBundles = 64

// bundleCache remembers bundles that were read: reading one of a megabyte takes
// tens of milliseconds.
type bundleCache struct {
	mu      sync.Mutex
	bundles map[string]*schemaBundle // by table id, id and etag
}

// bundle returns the schema bundle of a table, or NotFound.
func (s *Service) bundle(ctx context.Context, t *schema.Table, id string) (*schemaBundle, error) {
	etag, err := s.o.Resources.BundleETag(ctx, t, id)
	if err != nil {
		return nil, err
	}
	key := t.Name + "\x00" + dependencyOf(t, "").incarnation + "\x00" + id + "\x00" + etag
	c := &s.bundles
	c.mu.Lock()
	b := c.bundles[key]
	c.mu.Unlock()
	if b != nil {
		return b, nil
	}
	descriptors, err := s.o.Resources.BundleDescriptors(ctx, t, id)
	if err != nil {
		return nil, err
	}
	if descriptors == nil {
		return nil, fault.New(fault.NotFound, "Schema bundle %s has no protobuf schema", id)
	}
	p, err := bundle.ParseProto(descriptors)
	if err != nil {
		return nil, fault.New(fault.Corruption, "read schema bundle %s of %s: %w", id, t.Name, err)
	}
	b = &schemaBundle{id: id, etag: etag, proto: p, messages: map[protoreflect.FullName]*types.Type{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.bundles) >= maxBundles || c.bundles == nil {
		c.bundles = map[string]*schemaBundle{}
	}
	c.bundles[key] = b
	return b, nil
}

// typeOf returns the type that a message or an enum of b is in SQL.
func (b *schemaBundle) typeOf(name string) (*types.Type, bool) {
	d := b.proto.Find(name)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch d := d.(type) {
	case protoreflect.MessageDescriptor:
		return b.message(d), true
	case protoreflect.EnumDescriptor:
		return b.enum(d), true
	}
	return nil, false
}

func (b *schemaBundle) enum(d protoreflect.EnumDescriptor) *types.Type {
	if t := b.messages[d.FullName()]; t != nil {
		return t
	}
	e := &types.Enumeration{Bundle: b.id, Name: string(d.FullName()), Open: !d.IsClosed()}
	for i := range d.Values().Len() {
		v := d.Values().Get(i)
		e.Values = append(e.Values, types.EnumValue{Name: string(v.Name()), Number: int32(v.Number())})
	}
	t := &types.Type{Kind: types.Enum, Enumeration: e}
	b.messages[d.FullName()] = t
	return t
}

// message returns the type of a message. Messages may contain themselves, so it
// is known before its fields are.
func (b *schemaBundle) message(d protoreflect.MessageDescriptor) *types.Type {
	if t := b.messages[d.FullName()]; t != nil {
		return t
	}
	m := &types.Message{Bundle: b.id, Name: string(d.FullName())}
	t := &types.Type{Kind: types.Proto, Message: m}
	b.messages[d.FullName()] = t
	for i := range d.Fields().Len() {
		m.Fields = append(m.Fields, b.field(d.Fields().Get(i)))
	}
	return t
}

// field returns a field of a message. A 64-bit number without sign has no type
// here, since INT64 cannot hold all of it.
func (b *schemaBundle) field(d protoreflect.FieldDescriptor) types.ProtoField {
	f := types.ProtoField{Name: string(d.Name()), Number: int32(d.Number()), Repeated: d.IsList() || d.IsMap(), HasPresence: d.HasPresence()}
	def := d.Default()
	switch d.Kind() {
	case protoreflect.BoolKind:
		f.Wire, f.Type, f.Default = types.WireVarint, types.BoolType, types.NewBool(def.IsValid() && def.Bool())
	case protoreflect.EnumKind:
		f.Wire, f.Type, f.Default = types.WireVarint, b.enum(d.Enum()), types.NewInt(0)
		if def.IsValid() {
			f.Default.Int = int64(def.Enum())
		}
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		f.Wire, f.Type, f.Default = types.WireVarint, types.Int64Type, integer(def)
	case protoreflect.Uint32Kind:
		f.Wire, f.Type, f.Default = types.WireUnsigned32, types.Int64Type, unsigned(def)
	case protoreflect.Fixed32Kind:
		f.Wire, f.Type, f.Default = types.WireUnsignedFixed32, types.Int64Type, unsigned(def)
	case protoreflect.Sint32Kind, protoreflect.Sint64Kind:
		f.Wire, f.Type, f.Default = types.WireZigZag, types.Int64Type, integer(def)
	case protoreflect.Sfixed32Kind:
		f.Wire, f.Type, f.Default = types.WireFixed32, types.Int64Type, integer(def)
	case protoreflect.Sfixed64Kind:
		f.Wire, f.Type, f.Default = types.WireFixed64, types.Int64Type, integer(def)
	case protoreflect.FloatKind:
		f.Wire, f.Type, f.Default = types.WireFloat, types.Float32Type, types.NewFloat(0)
		if def.IsValid() {
			f.Default.Float = def.Float()
		}
	case protoreflect.DoubleKind:
		f.Wire, f.Type, f.Default = types.WireDouble, types.Float64Type, types.NewFloat(0)
		if def.IsValid() {
			f.Default.Float = def.Float()
		}
	case protoreflect.StringKind:
		f.Wire, f.Type, f.Default = types.WireBytes, types.StringType, types.NewString("")
		if def.IsValid() {
			f.Default.Str = def.String()
		}
	case protoreflect.BytesKind:
		f.Wire, f.Type, f.Default = types.WireBytes, types.BytesType, types.NewString("")
		if def.IsValid() {
			f.Default.Str = string(def.Bytes())
		}
	case protoreflect.MessageKind:
		f.Wire, f.Type, f.HasPresence = types.WireBytes, b.message(d.Message()), !f.Repeated
	case protoreflect.GroupKind:
		f.Wire, f.Type, f.HasPresence = types.WireGroup, b.message(d.Message()), !f.Repeated
	case protoreflect.Uint64Kind:
		f.Wire = types.WireVarint
	case protoreflect.Fixed64Kind:
		f.Wire = types.WireFixed64
	}
	if f.Repeated && f.Type != nil {
		f.Type, f.Default = types.ArrayOf(f.Type), types.NewList(nil)
	}
	return f
}

func integer(v protoreflect.Value) types.Value {
	if !v.IsValid() {
		return types.NewInt(0)
	}
	return types.NewInt(v.Int())
}

func unsigned(v protoreflect.Value) types.Value {
	if !v.IsValid() {
		return types.NewInt(0)
	}
	return types.NewInt(int64(v.Uint()))
}
