package bundle

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// A Proto is a set of protobuf files that import nothing else.
type Proto struct{ files *protoregistry.Files }

// ParseProto reads an encoded google.protobuf.FileDescriptorSet. Files that are
// imported must be in the set.
func ParseProto(b []byte) (*Proto, error) {
	set := new(descriptorpb.FileDescriptorSet)
	if err := proto.Unmarshal(b, set); err != nil {
		return nil, fmt.Errorf("not a google.protobuf.FileDescriptorSet")
	}
	if len(set.GetFile()) == 0 {
		return nil, fmt.Errorf("the google.protobuf.FileDescriptorSet has no file")
	}
	files, err := protodesc.NewFiles(set)
	if err != nil {
		return nil, fmt.Errorf("not a valid google.protobuf.FileDescriptorSet: %s", clean(err))
	}
	return &Proto{files}, nil
}

// Find returns the message or enum of that full name, or nil.
func (p *Proto) Find(name string) protoreflect.Descriptor {
	d, err := p.files.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil
	}
	return d
}

// clean returns the text of an error of the protobuf library, which starts in
// one of two ways so that no caller comes to depend on it.
func clean(err error) string {
	return strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\u00a0", " "), "proto: ")
}

// Breaks returns what of p next does not have any more, or has changed so that
// data or queries made for p would not do, in the order of names. It is empty
// if next is backward compatible.
func (p *Proto) Breaks(next *Proto) []string {
	c := protoChanges{next: next.files}
	p.files.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		c.all(f)
		return true
	})
	slices.Sort(c.breaks)
	return c.breaks
}

type protoChanges struct {
	next   *protoregistry.Files
	breaks []string
}

func (c *protoChanges) report(d protoreflect.Descriptor, format string, args ...any) {
	c.breaks = append(c.breaks, fmt.Sprintf("%s %s", d.FullName(), fmt.Sprintf(format, args...)))
}

// A scope is a file or a message.
type scope interface {
	Messages() protoreflect.MessageDescriptors
	Enums() protoreflect.EnumDescriptors
	Extensions() protoreflect.ExtensionDescriptors
}

func (c *protoChanges) all(s scope) {
	for i := range s.Messages().Len() {
		c.message(s.Messages().Get(i))
	}
	for i := range s.Enums().Len() {
		c.enum(s.Enums().Get(i))
	}
	for i := range s.Extensions().Len() {
		old := s.Extensions().Get(i)
		if now, ok := find[protoreflect.ExtensionDescriptor](c, old); ok {
			if old.Number() != now.Number() || old.ContainingMessage().FullName() != now.ContainingMessage().FullName() {
				c.report(old, "extends something else")
			}
			c.field(old, now)
		}
	}
}

// find returns what is called like old in the next set, if it is of its kind.
func find[D protoreflect.Descriptor](c *protoChanges, old D) (now D, ok bool) {
	d, err := c.next.FindDescriptorByName(old.FullName())
	if err == nil {
		now, ok = d.(D)
	}
	if !ok {
		c.report(old, "is gone")
	}
	return now, ok
}

func (c *protoChanges) message(old protoreflect.MessageDescriptor) {
	now, ok := find(c, old)
	if !ok {
		return
	}
	for i := range old.Fields().Len() {
		f := old.Fields().Get(i)
		g := now.Fields().ByNumber(f.Number())
		switch {
		case g == nil:
			c.report(f, "is gone")
		case g.Name() != f.Name():
			c.report(f, "is now called %s", g.Name())
		default:
			c.field(f, g)
		}
	}
	for i := range now.Fields().Len() {
		if g := now.Fields().Get(i); g.Cardinality() == protoreflect.Required && old.Fields().ByNumber(g.Number()) == nil {
			c.report(g, "is new and required")
		}
	}
	c.all(old)
}

func (c *protoChanges) field(old, now protoreflect.FieldDescriptor) {
	switch {
	case old.Kind() != now.Kind():
		c.report(old, "is now a %s, not a %s", now.Kind(), old.Kind())
	case old.Cardinality() != now.Cardinality():
		c.report(old, "is now %s, not %s", now.Cardinality(), old.Cardinality())
	case old.IsMap() != now.IsMap():
		c.report(old, "has become a map or ceased to be one")
	case old.Message() != nil && old.Message().FullName() != now.Message().FullName():
		c.report(old, "is now a %s, not a %s", now.Message().FullName(), old.Message().FullName())
	case old.Enum() != nil && old.Enum().FullName() != now.Enum().FullName():
		c.report(old, "is now a %s, not a %s", now.Enum().FullName(), old.Enum().FullName())
	case oneof(old) != oneof(now):
		c.report(old, "has moved into a oneof, or out of one")
	}
}

// oneof names the oneof of a field, if it is one that was written as such.
func oneof(f protoreflect.FieldDescriptor) protoreflect.Name {
	if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
		return o.Name()
	}
	return ""
}

func (c *protoChanges) enum(old protoreflect.EnumDescriptor) {
	now, ok := find(c, old)
	if !ok {
		return
	}
	for i := range old.Values().Len() {
		v := old.Values().Get(i)
		w := now.Values().ByName(v.Name())
		switch {
		case w == nil:
			c.report(v, "is gone")
		case w.Number() != v.Number():
			c.report(v, "is now %d, not %d", w.Number(), v.Number())
		}
	}
}
