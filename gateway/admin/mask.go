package admin

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/trestledb/trestle/engine/fault"
)

// A maskRule says which paths of an update mask are accepted.
type maskRule struct {
	// allowed paths, with everything below them
	allowed []string
	// ignored paths are accepted and change nothing
	ignored []string
}

// checkMask refuses an empty mask and paths that cannot be updated.
func checkMask(m *fieldmaskpb.FieldMask, on proto.Message, r maskRule) error {
	if len(m.GetPaths()) == 0 {
		return refuse(fault.Invalid, "update_mask", "A non-empty 'update_mask' must be specified")
	}
	for _, p := range m.GetPaths() {
		if covered(p, r.allowed) || covered(p, r.ignored) {
			if !known(on.ProtoReflect().Descriptor(), p) {
				return refuse(fault.Invalid, "update_mask", "Error in field 'update_mask' : Unknown field '%s'", p)
			}
			continue
		}
		if p != "*" && known(on.ProtoReflect().Descriptor(), p) {
			return refuse(fault.Invalid, "update_mask", "Immutable fields '%s' cannot be updated", p)
		}
		return refuse(fault.Invalid, "update_mask", "Error in field 'update_mask' : Unknown field '%s'", p)
	}
	return nil
}

// covered tells whether p is one of roots, or lies below one.
func covered(p string, roots []string) bool {
	for _, r := range roots {
		if p == r || strings.HasPrefix(p, r+".") {
			return true
		}
	}
	return false
}

// masks tells whether a path of m is path, lies below it or above it.
func masks(m *fieldmaskpb.FieldMask, path string) bool {
	for _, p := range m.GetPaths() {
		if covered(p, []string{path}) || covered(path, []string{p}) {
			return true
		}
	}
	return false
}

// known tells whether path names a field of message d.
func known(d protoreflect.MessageDescriptor, path string) bool {
	for {
		head, rest, more := strings.Cut(path, ".")
		fd := d.Fields().ByName(protoreflect.Name(head))
		if fd == nil {
			return false
		}
		if !more {
			return true
		}
		if fd.Message() == nil || fd.Cardinality() == protoreflect.Repeated {
			return false
		}
		d, path = fd.Message(), rest
	}
}

// applyMask copies the fields that m names from src to dst, which are messages
// of one type. A field that is not set in src is cleared in dst. Every path is
// known.
func applyMask(dst, src proto.Message, m *fieldmaskpb.FieldMask, r maskRule) {
	src = proto.Clone(src) // what is copied must not be shared with the request
	for _, p := range m.GetPaths() {
		if !covered(p, r.ignored) {
			applyPath(dst.ProtoReflect(), src.ProtoReflect(), p)
		}
	}
}

func applyPath(dst, src protoreflect.Message, path string) {
	head, rest, more := strings.Cut(path, ".")
	fd := dst.Descriptor().Fields().ByName(protoreflect.Name(head))
	switch {
	case more && (src.Has(fd) || dst.Has(fd)):
		// Only then: Mutable makes the message if it is not there, and in a oneof
		// drops the other choice, which a cleared leaf alone must not do.
		applyPath(dst.Mutable(fd).Message(), src.Get(fd).Message(), rest)
	case more:
	case src.Has(fd):
		dst.Set(fd, src.Get(fd))
	default:
		dst.Clear(fd)
	}
}
