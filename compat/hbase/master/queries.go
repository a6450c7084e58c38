package master

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/filter"
	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/server"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/fault"
)

// computedTables are there without having been created.
var computedTables = []model.Name{model.Meta, model.NamespaceTable}

// tables returns the tables of a namespace, of all if it is empty.
func (m *Master) tables(ctx context.Context, c *server.Call, namespace string) ([]*model.Table, error) {
	names := []string{namespace}
	if namespace == "" {
		var err error
		if names, err = m.catalog.Namespaces(ctx); err != nil {
			return nil, err
		}
	} else if err := m.namespaceExists(ctx, namespace); err != nil {
		return nil, err
	}
	var out []*model.Table
	for _, ns := range names {
		if ns == model.SystemNamespace {
			continue
		}
		ctx, err := m.authorize(ctx, c, toList, m.catalog.Mapping().InstanceName(ns))
		if namespace == "" && errors.Is(err, fault.PermissionDenied) {
			continue // those that the caller may not see are not there
		}
		if err != nil {
			return nil, err
		}
		list, err := m.catalog.Tables(ctx, ns)
		if err != nil {
			return nil, err
		}
		out = append(out, list...)
	}
	return out, nil
}

// matching returns what tells whether a name matches a regular expression,
// whole, with or without the namespace "default"; nil matches all.
func matching(c *server.Call, regex *string) (func(model.Name) bool, error) {
	if regex == nil {
		return func(model.Name) bool { return true }, nil
	}
	match, err := filter.Pattern(*regex, c.Take)
	if e, ok := errors.AsType[*filter.Error](err); ok {
		return nil, wire.DoNotRetryIO.New("%v", e)
	}
	if err != nil {
		return nil, err
	}
	return func(n model.Name) bool {
		return match(n.String()) || n.Namespace == model.DefaultNamespace && match(n.Namespace+":"+n.Qualifier)
	}, nil
}

func (m *Master) getTableDescriptors(ctx context.Context, c *server.Call, req *pb.GetTableDescriptorsRequest) (*pb.GetTableDescriptorsResponse, error) {
	resp := &pb.GetTableDescriptorsResponse{}
	if len(req.GetTableNames()) > 0 {
		// Those that are not there are left out.
		for _, n := range req.GetTableNames() {
			name := model.NameOf(n)
			if slices.Contains(computedTables, name) {
				resp.TableSchema = append(resp.TableSchema, system(name))
				continue
			}
			ctx, err := m.authorize(ctx, c, toSee, m.catalog.Mapping().Resource(name))
			if err != nil {
				return nil, err
			}
			t, err := m.table(ctx, name)
			if is(err, wire.TableNotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
			resp.TableSchema = append(resp.TableSchema, descriptor(t))
		}
		return resp, nil
	}
	match, err := matching(c, req.Regex)
	if err != nil {
		return nil, err
	}
	list, err := m.tables(ctx, c, req.GetNamespace())
	if err != nil {
		return nil, err
	}
	if ns := req.GetNamespace(); req.GetIncludeSysTables() || ns == model.SystemNamespace {
		for _, n := range computedTables {
			if match(n) && (ns == "" || ns == n.Namespace) {
				resp.TableSchema = append(resp.TableSchema, system(n))
			}
		}
	}
	for _, t := range list {
		if match(t.Name) {
			resp.TableSchema = append(resp.TableSchema, descriptor(t))
		}
	}
	return resp, nil
}

func (m *Master) getTableNames(ctx context.Context, c *server.Call, req *pb.GetTableNamesRequest) (*pb.GetTableNamesResponse, error) {
	match, err := matching(c, req.Regex)
	if err != nil {
		return nil, err
	}
	list, err := m.tables(ctx, c, req.GetNamespace())
	if err != nil {
		return nil, err
	}
	resp := &pb.GetTableNamesResponse{}
	if ns := req.GetNamespace(); req.GetIncludeSysTables() || ns == model.SystemNamespace {
		for _, n := range computedTables {
			if match(n) && (ns == "" || ns == n.Namespace) {
				resp.TableNames = append(resp.TableNames, n.Proto())
			}
		}
	}
	for _, t := range list {
		if match(t.Name) {
			resp.TableNames = append(resp.TableNames, t.Name.Proto())
		}
	}
	return resp, nil
}

func (m *Master) getTableState(ctx context.Context, c *server.Call, req *pb.GetTableStateRequest) (*pb.GetTableStateResponse, error) {
	name := model.NameOf(req.GetTableName())
	state := pb.TableState_ENABLED
	if !slices.Contains(computedTables, name) {
		ctx, err := m.authorize(ctx, c, toSee, m.catalog.Mapping().Resource(name))
		if err != nil {
			return nil, err
		}
		t, err := m.table(ctx, name)
		if err != nil {
			return nil, err
		}
		state = pb.TableState_State(t.Stored.State)
	}
	return &pb.GetTableStateResponse{TableState: &pb.TableState{State: state.Enum()}}, nil
}

func (m *Master) getSchemaAlterStatus(ctx context.Context, c *server.Call, req *pb.GetSchemaAlterStatusRequest) (*pb.GetSchemaAlterStatusResponse, error) {
	name := model.NameOf(req.GetTableName())
	ctx, err := m.authorize(ctx, c, toSee, m.catalog.Mapping().Resource(name))
	if err != nil {
		return nil, err
	}
	t, err := m.table(ctx, name)
	if err != nil {
		return nil, err
	}
	regions, err := m.catalog.Regions(ctx, t)
	if err != nil {
		return nil, err
	}
	return &pb.GetSchemaAlterStatusResponse{YetToUpdateRegions: proto.Uint32(0), TotalRegions: proto.Uint32(uint32(len(regions)))}, nil
}

func (m *Master) byState(ctx context.Context, c *server.Call, enabled bool) ([]*model.Table, error) {
	list, err := m.tables(ctx, c, "")
	return slices.DeleteFunc(list, func(t *model.Table) bool { return t.Enabled() != enabled }), err
}

func (m *Master) listTableNamesByState(ctx context.Context, c *server.Call, req *pb.ListTableNamesByStateRequest) (*pb.ListTableNamesByStateResponse, error) {
	list, err := m.byState(ctx, c, req.GetIsEnabled())
	resp := &pb.ListTableNamesByStateResponse{}
	for _, t := range list {
		resp.TableNames = append(resp.TableNames, t.Name.Proto())
	}
	return resp, err
}

func (m *Master) listTableDescriptorsByState(ctx context.Context, c *server.Call, req *pb.ListTableDescriptorsByStateRequest) (*pb.ListTableDescriptorsByStateResponse, error) {
	list, err := m.byState(ctx, c, req.GetIsEnabled())
	resp := &pb.ListTableDescriptorsByStateResponse{}
	for _, t := range list {
		resp.TableSchema = append(resp.TableSchema, descriptor(t))
	}
	return resp, err
}

func (m *Master) listTableNamesByNamespace(ctx context.Context, c *server.Call, req *pb.ListTableNamesByNamespaceRequest) (*pb.ListTableNamesByNamespaceResponse, error) {
	resp := &pb.ListTableNamesByNamespaceResponse{}
	if req.GetNamespaceName() == model.SystemNamespace {
		for _, n := range computedTables {
			resp.TableName = append(resp.TableName, n.Proto())
		}
		return resp, nil
	}
	list, err := m.tables(ctx, c, req.GetNamespaceName())
	for _, t := range list {
		resp.TableName = append(resp.TableName, t.Name.Proto())
	}
	return resp, err
}

func (m *Master) listTableDescriptorsByNamespace(ctx context.Context, c *server.Call, req *pb.ListTableDescriptorsByNamespaceRequest) (*pb.ListTableDescriptorsByNamespaceResponse, error) {
	resp := &pb.ListTableDescriptorsByNamespaceResponse{}
	if req.GetNamespaceName() == model.SystemNamespace {
		for _, n := range computedTables {
			resp.TableSchema = append(resp.TableSchema, system(n))
		}
		return resp, nil
	}
	list, err := m.tables(ctx, c, req.GetNamespaceName())
	for _, t := range list {
		resp.TableSchema = append(resp.TableSchema, descriptor(t))
	}
	return resp, err
}
