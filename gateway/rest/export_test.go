package rest

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A Sample is one way to call a method.
type Sample struct{ Method, Path, RPC string }

// Samples returns a request for each route: of instance i and of names that are
// nowhere.
func (h *Handler) Samples() (out []Sample) {
	for _, rt := range h.routes {
		path := variable.ReplaceAllStringFunc(rt.text, func(v string) string {
			m := variable.FindStringSubmatch(v)
			switch m[2] {
			case "":
				return "nope-1"
			case "**":
				return "projects/p"
			}
			return strings.ReplaceAll(m[2], "**", "projects/p/instances/nope-1/operations/1")
		})
		path = strings.NewReplacer("operations/projects/projects/", "operations/projects/", "projects/*", "projects/p", "*", "nope-1").Replace(path)
		out = append(out, Sample{rt.method, path, rt.rpc})
	}
	return out
}

// Bind fills in the request that a sample makes.
func (h *Handler) Bind(s Sample, m proto.Message) {
	for i := range h.routes {
		rt := &h.routes[i]
		if values, ok, _ := rt.match(s.Path); ok && rt.rpc == s.RPC && rt.method == s.Method {
			rt.bindPath(m, values)
			return
		}
	}
}

// Descriptor returns the method that a sample calls.
func (s Sample) Descriptor() protoreflect.FullName {
	return protoreflect.FullName(strings.ReplaceAll(s.RPC[1:], "/", "."))
}
