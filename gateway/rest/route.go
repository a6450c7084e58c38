package rest

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	// The services that are served describe themselves.
	_ "cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	_ "cloud.google.com/go/iam/admin/apiv1/adminpb"
	_ "cloud.google.com/go/iam/apiv1/iampb"
	_ "cloud.google.com/go/longrunning/autogen/longrunningpb"
)

// services are those with routes, where their annotations do not say otherwise.
var services = []protoreflect.FullName{
	"google.bigtable.admin.v2.BigtableInstanceAdmin",
	"google.bigtable.admin.v2.BigtableTableAdmin",
	"google.longrunning.Operations",
	"google.iam.v1.IAMPolicy",
	"google.iam.admin.v1.IAM",
}

// instead replaces annotations, as the configuration of the Bigtable admin API
// (bigtableadmin_v2.yaml) does.
var instead = map[protoreflect.FullName]*annotations.HttpRule{
	"google.longrunning.Operations.GetOperation":    get("/v2/{name=operations/**}"),
	"google.longrunning.Operations.ListOperations":  get("/v2/{name=operations/projects/**}/operations"),
	"google.longrunning.Operations.DeleteOperation": {Pattern: &annotations.HttpRule_Delete{Delete: "/v2/{name=operations/**}"}},
	"google.longrunning.Operations.CancelOperation": {Pattern: &annotations.HttpRule_Post{Post: "/v2/{name=operations/**}:cancel"}, Body: "*"},
}

func get(path string) *annotations.HttpRule {
	return &annotations.HttpRule{Pattern: &annotations.HttpRule_Get{Get: path}}
}

// A route is one way to call a method.
type route struct {
	method string // of HTTP
	*template
	rpc   string // full name of the gRPC method
	input protoreflect.MessageDescriptor
	body  string // the field that the body is, "*" for the whole request, empty for none
	// answers makes what writes the answers of a method that has many; nil if it has one.
	answers func(protojson.MarshalOptions) answers
	// bound has a request ask for no more than one answer has; nil if none needs it.
	bound func(proto.Message)
}

// routesOf returns the routes of services, the more specific first.
func routesOf(names []protoreflect.FullName) ([]route, error) {
	var out []route
	var errs []error
	for _, name := range names {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if err != nil {
			return nil, fmt.Errorf("find service %s: %w", name, err)
		}
		s, ok := d.(protoreflect.ServiceDescriptor)
		if !ok {
			return nil, fmt.Errorf("%s is no service", name)
		}
		for i := range s.Methods().Len() {
			m := s.Methods().Get(i)
			rule := instead[m.FullName()]
			if rule == nil {
				rule, _ = proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
			}
			if rule == nil || m.IsStreamingClient() || m.IsStreamingServer() {
				continue
			}
			for _, r := range append([]*annotations.HttpRule{rule}, rule.GetAdditionalBindings()...) {
				route, err := newRoute(m, r)
				if err != nil {
					errs = append(errs, fmt.Errorf("route of %s: %w", m.FullName(), err))
					continue
				}
				out = append(out, route)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b route) int { return cmp.Compare(a.rank, b.rank) })
	return out, errors.Join(errs...)
}

func newRoute(m protoreflect.MethodDescriptor, rule *annotations.HttpRule) (route, error) {
	r := route{rpc: fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name()), input: m.Input(), body: rule.GetBody()}
	var path string
	switch p := rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		r.method, path = http.MethodGet, p.Get
	case *annotations.HttpRule_Put:
		r.method, path = http.MethodPut, p.Put
	case *annotations.HttpRule_Post:
		r.method, path = http.MethodPost, p.Post
	case *annotations.HttpRule_Delete:
		r.method, path = http.MethodDelete, p.Delete
	case *annotations.HttpRule_Patch:
		r.method, path = http.MethodPatch, p.Patch
	default:
		return r, fmt.Errorf("pattern %T is not supported", p)
	}
	if rule.GetResponseBody() != "" {
		return r, errors.New("response_body is not supported")
	}
	var err error
	if r.template, err = compile(path); err != nil {
		return r, err
	}
	for _, f := range r.fields {
		if _, leaf := lookup(r.input, f); leaf == nil || leaf.Kind() != protoreflect.StringKind || leaf.IsList() {
			return r, fmt.Errorf("%s has no text field %s", r.input.FullName(), f)
		}
	}
	if r.body != "" && r.body != "*" {
		if f := fieldOf(r.input, r.body); f == nil || f.Message() == nil || f.IsList() || f.IsMap() {
			return r, fmt.Errorf("%s has no message in a field %s", r.input.FullName(), r.body)
		}
	}
	return r, nil
}
