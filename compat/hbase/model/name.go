package model

import (
	"strings"

	"github.com/trestledb/trestle/compat/hbase/pb"
)

// The namespaces that are always there.
const (
	DefaultNamespace = "default"
	SystemNamespace  = "hbase"
)

// A Name is the name of a table.
type Name struct{ Namespace, Qualifier string }

// Meta is the table of regions, and NamespaceTable that of namespaces. Both
// are computed.
var (
	Meta           = Name{SystemNamespace, "meta"}
	NamespaceTable = Name{SystemNamespace, "namespace"}
)

// ParseName reads what String writes.
func ParseName(s string) Name {
	if ns, q, ok := strings.Cut(s, ":"); ok {
		return Name{ns, q}
	}
	return Name{DefaultNamespace, s}
}

// NameOf returns the name in a message.
func NameOf(t *pb.TableName) Name {
	n := Name{string(t.GetNamespace()), string(t.GetQualifier())}
	if n.Namespace == "" {
		n.Namespace = DefaultNamespace
	}
	return n
}

// String returns the name as clients write it: without the default namespace.
func (n Name) String() string {
	if n.Namespace == DefaultNamespace {
		return n.Qualifier
	}
	return n.Namespace + ":" + n.Qualifier
}

// Proto returns n as a message.
func (n Name) Proto() *pb.TableName {
	return &pb.TableName{Namespace: []byte(n.Namespace), Qualifier: []byte(n.Qualifier)}
}

// System tells whether n is in the namespace of computed tables.
func (n Name) System() bool { return n.Namespace == SystemNamespace }

// A Mapping says which instances are namespaces.
type Mapping struct {
	// Project is the id of the project in which namespaces are instances.
	Project string
	// Instance is the id of the instance that is the namespace "default".
	Instance string
}

// InstanceID returns the id of the instance that a namespace is.
func (m Mapping) InstanceID(namespace string) string {
	if namespace == DefaultNamespace {
		return m.Instance
	}
	return namespace
}

// InstanceName returns the resource name of a namespace.
func (m Mapping) InstanceName(namespace string) string {
	return "projects/" + m.Project + "/instances/" + m.InstanceID(namespace)
}

// Resource returns the resource name of a table.
func (m Mapping) Resource(n Name) string {
	return m.InstanceName(n.Namespace) + "/tables/" + n.Qualifier
}

// Name returns the table with a resource name; ok is false if no namespace
// holds it.
func (m Mapping) Name(resource string) (n Name, ok bool) {
	rest, ok := strings.CutPrefix(resource, "projects/"+m.Project+"/instances/")
	if !ok {
		return n, false
	}
	instance, q, ok := strings.Cut(rest, "/tables/")
	if !ok {
		return n, false
	}
	ns := instance
	switch instance {
	case m.Instance:
		ns = DefaultNamespace
	case DefaultNamespace, SystemNamespace:
		return n, false // these names mean something else to HBase
	}
	return Name{ns, q}, true
}
