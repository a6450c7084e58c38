package master

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/server"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/fault"
)

// constraint is what HBase says to a change of a namespace that is not allowed.
var constraint = wire.Class{Name: "org.apache.hadoop.hbase.constraint.ConstraintException", DoNotRetry: true}

func reserved(ns string) bool { return ns == model.DefaultNamespace || ns == model.SystemNamespace }

// namespace returns a namespace's descriptor and the version of its record, 0
// if it has none.
func (m *Master) namespace(ctx context.Context, ns string) (*pb.NamespaceDescriptor, uint64, error) {
	d := &pb.NamespaceDescriptor{Name: []byte(ns)}
	b, version, err := m.b.GetRecord(ctx, model.RecordNamespaces+ns)
	switch {
	case errors.Is(err, fault.NotFound):
		if reserved(ns) {
			return d, 0, nil
		}
		return nil, 0, wire.NamespaceNotFound.New("%s", ns)
	case err != nil:
		return nil, 0, err
	}
	if err := proto.Unmarshal(b, d); err != nil {
		return nil, 0, fault.New(fault.Corruption, "record of namespace %s: %w", ns, err)
	}
	return d, version, nil
}

func (m *Master) namespaceExists(ctx context.Context, ns string) error {
	if reserved(ns) {
		return nil
	}
	_, _, err := m.namespace(ctx, ns)
	return err
}

// changeNamespace runs a change of a namespace.
func (m *Master) changeNamespace(ctx context.Context, c *server.Call, n nonce, rpc, what, ns string, do func(ctx context.Context) error) (*uint64, error) {
	if err := checkNamespace(ns); err != nil {
		return nil, err
	}
	resource := m.catalog.Mapping().InstanceName(ns)
	if rpc == toFound {
		resource = "projects/" + m.catalog.Mapping().Project
	}
	ctx, err := m.authorize(ctx, c, rpc, resource)
	if err != nil {
		return nil, err
	}
	id, err := m.procs.run(ctx, n, func() error {
		m.ddl.Lock()
		defer m.ddl.Unlock()
		return do(ctx)
	})
	if err != nil {
		return nil, err
	}
	m.o.Log.LogAttrs(ctx, slog.LevelInfo, what, slog.String("namespace", ns), slog.String("user", c.User))
	return &id, nil
}

func (m *Master) putNamespace(ctx context.Context, d *pb.NamespaceDescriptor, version uint64) error {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(d)
	if err == nil {
		_, err = m.b.PutRecord(ctx, model.RecordNamespaces+string(d.GetName()), b, version)
	}
	return err
}

func (m *Master) createNamespace(ctx context.Context, c *server.Call, req *pb.CreateNamespaceRequest) (*pb.CreateNamespaceResponse, error) {
	d := req.GetNamespaceDescriptor()
	ns := string(d.GetName())
	id, err := m.changeNamespace(ctx, c, nonce{req.GetNonceGroup(), req.GetNonce()}, toFound, "HBase namespace created", ns, func(ctx context.Context) error {
		mapping := m.catalog.Mapping()
		if _, _, err := m.namespace(ctx, ns); err == nil || ns == mapping.Instance {
			return wire.NamespaceExists.New("%s", ns)
		} else if !is(err, wire.NamespaceNotFound) {
			return err
		}
		// First the instance: without the record no request looks for it, and the next
		// attempt finds it there.
		if m.o.Ensure != nil {
			if err := m.o.Ensure(ctx, mapping.InstanceName(ns)); err != nil {
				return err
			}
		}
		return m.putNamespace(ctx, d, 0)
	})
	if err != nil {
		return nil, err
	}
	return &pb.CreateNamespaceResponse{ProcId: id}, nil
}

func (m *Master) modifyNamespace(ctx context.Context, c *server.Call, req *pb.ModifyNamespaceRequest) (*pb.ModifyNamespaceResponse, error) {
	d := req.GetNamespaceDescriptor()
	ns := string(d.GetName())
	id, err := m.changeNamespace(ctx, c, nonce{req.GetNonceGroup(), req.GetNonce()}, toManage, "HBase namespace modified", ns, func(ctx context.Context) error {
		if ns == model.SystemNamespace {
			return constraint.New("Reserved namespace %s cannot be modified.", ns)
		}
		_, version, err := m.namespace(ctx, ns)
		if err != nil {
			return err
		}
		return m.putNamespace(ctx, d, version)
	})
	if err != nil {
		return nil, err
	}
	return &pb.ModifyNamespaceResponse{ProcId: id}, nil
}

func (m *Master) deleteNamespace(ctx context.Context, c *server.Call, req *pb.DeleteNamespaceRequest) (*pb.DeleteNamespaceResponse, error) {
	ns := req.GetNamespaceName()
	id, err := m.changeNamespace(ctx, c, nonce{req.GetNonceGroup(), req.GetNonce()}, toAbolish, "HBase namespace deleted", ns, func(ctx context.Context) error {
		if reserved(ns) {
			return constraint.New("Reserved namespace %s cannot be removed.", ns)
		}
		_, version, err := m.namespace(ctx, ns)
		if err != nil {
			return err
		}
		tables, err := m.catalog.Tables(ctx, ns)
		if err != nil {
			return err
		}
		if len(tables) > 0 {
			return constraint.New("Only empty namespaces can be removed. Namespace %s has %d tables", ns, len(tables))
		}
		// The instance stays, which may have been there before.
		return m.b.DeleteRecord(ctx, model.RecordNamespaces+ns, version)
	})
	if err != nil {
		return nil, err
	}
	return &pb.DeleteNamespaceResponse{ProcId: id}, nil
}

func (m *Master) getNamespaceDescriptor(ctx context.Context, c *server.Call, req *pb.GetNamespaceDescriptorRequest) (*pb.GetNamespaceDescriptorResponse, error) {
	ctx, err := m.authorize(ctx, c, toVisit, m.catalog.Mapping().InstanceName(req.GetNamespaceName()))
	if err != nil {
		return nil, err
	}
	d, _, err := m.namespace(ctx, req.GetNamespaceName())
	if err != nil {
		return nil, err
	}
	return &pb.GetNamespaceDescriptorResponse{NamespaceDescriptor: d}, nil
}

// namespaces returns all namespaces, sorted.
func (m *Master) namespaces(ctx context.Context, c *server.Call) ([]string, error) {
	if _, err := m.known(ctx, c); err != nil {
		return nil, err
	}
	names, err := m.catalog.Namespaces(ctx)
	if err != nil {
		return nil, err
	}
	names = append(slices.Clone(names), model.SystemNamespace)
	slices.Sort(names)
	return names, nil
}

func (m *Master) listNamespaces(ctx context.Context, c *server.Call, _ *pb.ListNamespacesRequest) (*pb.ListNamespacesResponse, error) {
	names, err := m.namespaces(ctx, c)
	return &pb.ListNamespacesResponse{NamespaceName: names}, err
}

func (m *Master) listNamespaceDescriptors(ctx context.Context, c *server.Call, _ *pb.ListNamespaceDescriptorsRequest) (*pb.ListNamespaceDescriptorsResponse, error) {
	names, err := m.namespaces(ctx, c)
	if err != nil {
		return nil, err
	}
	resp := &pb.ListNamespaceDescriptorsResponse{}
	for _, ns := range names {
		d, _, err := m.namespace(ctx, ns)
		if is(err, wire.NamespaceNotFound) {
			continue // deleted a moment ago
		}
		if err != nil {
			return nil, err
		}
		resp.NamespaceDescriptor = append(resp.NamespaceDescriptor, d)
	}
	return resp, nil
}
