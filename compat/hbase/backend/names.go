package backend

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/engine/fault"
)

// place says which HBase names are whose.
//
// The namespace "default" is one instance, Options.Project and Options.Instance.
// Every other namespace is an instance too: of the same project under its own
// name, of another project as <project>__<instance>. Bytes that a namespace may
// not have, and "_" where it would mean something else, are written _xx.
type place struct{ project, instance string }

var (
	resourceName  = regexp.MustCompile(`^projects/([^/]+)/instances/([^/]+)/tables/([^/]+)$`)
	qualifierName = regexp.MustCompile(`^[A-Za-z0-9_][-A-Za-z0-9_.]*$`)
)

// table returns the HBase name of a table.
func (p place) table(resource string) (model.Name, error) {
	m := resourceName.FindStringSubmatch(resource)
	if m == nil {
		return model.Name{}, fault.New(fault.Invalid, "%q is not the name of a table", resource)
	}
	if !qualifierName.MatchString(m[3]) {
		return model.Name{}, fault.New(fault.Invalid, "HBase cannot name a table %q", m[3])
	}
	return model.Name{Namespace: p.namespace(m[1], m[2]), Qualifier: m[3]}, nil
}

// namespace returns the namespace of an instance.
func (p place) namespace(project, instance string) string {
	switch {
	case project != p.project:
		return escape(project) + "__" + escape(instance)
	case instance == p.instance:
		return model.DefaultNamespace
	case instance == model.DefaultNamespace || instance == model.SystemNamespace:
		// These names are taken.
		return fmt.Sprintf("_%02x%s", instance[0], instance[1:])
	}
	return escape(instance)
}

// parent returns "projects/P/instances/I" of a namespace.
func (p place) parent(namespace string) string {
	project, instance := p.project, p.instance
	if namespace != model.DefaultNamespace {
		if i := separator(namespace); i >= 0 {
			project, instance = unescape(namespace[:i]), unescape(namespace[i+2:])
		} else {
			instance = unescape(namespace)
		}
	}
	return "projects/" + project + "/instances/" + instance
}

// resource returns the full name of a table.
func (p place) resource(n model.Name) string { return p.parent(n.Namespace) + "/tables/" + n.Qualifier }

func plainByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func hexDigit(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' }

// escape writes s in the bytes of a namespace. An underscore stays as it is
// where it can be taken for nothing else.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		special := c != '_' || i+1 == len(s) || s[i+1] == '_' || i+2 < len(s) && hexDigit(s[i+1]) && hexDigit(s[i+2]) ||
			!plainByte(s[i+1])
		if plainByte(c) || !special {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	return b.String()
}

func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '_' && i+2 < len(s) && hexDigit(s[i+1]) && hexDigit(s[i+2]) {
			c, _ := hex.DecodeString(s[i+1 : i+3]) // both are digits
			b.Write(c)
			i += 2
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// separator finds the "__" between a project and an instance, or -1.
func separator(s string) int {
	i := strings.Index(s, "__")
	if i <= 0 || i+2 >= len(s) {
		return -1
	}
	return i
}

// toHBase returns the name that a column has in HBase. In a table of ours no
// column is without one: HBase 2.6 confuses its cells with the deletion of their
// family if the family has NEW_VERSION_BEHAVIOR, and then shows what was deleted
// or fails to read the row. Names of nothing but zero bytes are therefore one
// byte longer, which keeps them apart and in order.
func (t *table) toHBase(qualifier []byte) []byte {
	if !t.versioned || !zeros(qualifier) {
		return qualifier
	}
	return make([]byte, len(qualifier)+1)
}

// fromHBase undoes toHBase.
func (t *table) fromHBase(qualifier []byte) []byte {
	if !t.versioned || len(qualifier) == 0 || !zeros(qualifier) {
		return qualifier
	}
	return qualifier[1:]
}

func zeros(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
