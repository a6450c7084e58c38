package admin

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/fault"
)

const instancePrefix = "instances/"

// An instance is an instance with what its rules span.
type instance struct {
	pb       *adminpb.Instance
	clusters map[string]*adminpb.Cluster    // by id
	profiles map[string]*adminpb.AppProfile // by id
	// layers are the memory layers that were set, by id of the cluster.
	layers map[string]*adminpb.MemoryLayer
	// deleting is set while the instance's tables are deleted. No request sees such
	// an instance; what is left of it goes when it is deleted or created again.
	deleting bool
	version  uint64 // of the record; 0 if there is none yet
}

// storedInstance is the record of an instance. Messages are in the wire format
// of protobuf.
type storedInstance struct {
	Instance []byte            `json:"instance"`
	Clusters map[string][]byte `json:"clusters"`
	Profiles map[string][]byte `json:"profiles"`
	Layers   map[string][]byte `json:"layers,omitempty"`
	Deleting bool              `json:"deleting,omitempty"`
}

var deterministic = proto.MarshalOptions{Deterministic: true}

func (i *instance) marshal() ([]byte, error) {
	var err error
	enc := func(m proto.Message) []byte {
		b, e := deterministic.Marshal(m)
		if e != nil {
			err = e
		}
		return b
	}
	s := storedInstance{Instance: enc(i.pb), Clusters: map[string][]byte{}, Profiles: map[string][]byte{}, Layers: map[string][]byte{}, Deleting: i.deleting}
	for id, c := range i.clusters {
		s.Clusters[id] = enc(c)
	}
	for id, p := range i.profiles {
		s.Profiles[id] = enc(p)
	}
	for id, l := range i.layers {
		s.Layers[id] = enc(l)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(s)
}

func unmarshalInstance(b []byte) (*instance, error) {
	var s storedInstance
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fault.New(fault.Corruption, "read instance record: %w", err)
	}
	i := &instance{pb: new(adminpb.Instance), clusters: map[string]*adminpb.Cluster{}, profiles: map[string]*adminpb.AppProfile{},
		layers: map[string]*adminpb.MemoryLayer{}, deleting: s.Deleting}
	var err error
	dec := func(b []byte, m proto.Message) {
		if e := proto.Unmarshal(b, m); e != nil {
			err = e
		}
	}
	dec(s.Instance, i.pb)
	for id, b := range s.Clusters {
		i.clusters[id] = new(adminpb.Cluster)
		dec(b, i.clusters[id])
	}
	for id, b := range s.Profiles {
		i.profiles[id] = new(adminpb.AppProfile)
		dec(b, i.profiles[id])
	}
	for id, b := range s.Layers {
		i.layers[id] = new(adminpb.MemoryLayer)
		dec(b, i.layers[id])
	}
	if err != nil {
		return nil, fault.New(fault.Corruption, "read instance record: %w", err)
	}
	return i, nil
}

func (i *instance) clusterIDs() []string { return slices.Sorted(maps.Keys(i.clusters)) }
func (i *instance) profileIDs() []string { return slices.Sorted(maps.Keys(i.profiles)) }

// readInstance returns an instance also while it is being deleted, or nil.
func (a *Admin) readInstance(ctx context.Context, name string) (*instance, error) {
	b, version, err := a.b.GetRecord(ctx, instancePrefix+name)
	if fault.KindOf(err) == fault.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	i, err := unmarshalInstance(b)
	if err != nil {
		return nil, err
	}
	i.version = version
	return i, nil
}

// instanceAt returns the instance called name, which came in field.
func (a *Admin) instanceAt(ctx context.Context, field, name string) (*instance, error) {
	i, err := a.readInstance(ctx, name)
	if err == nil && (i == nil || i.deleting) {
		err = missingInstance(field, name)
	}
	return i, err
}

// instanceToShow is instanceAt for a call that changes nothing: in emulator mode
// an instance that has tables is there too.
func (a *Admin) instanceToShow(ctx context.Context, field, name string) (*instance, error) {
	i, err := a.instanceAt(ctx, field, name)
	if !a.o.Emulator || fault.KindOf(err) != fault.NotFound {
		return i, err
	}
	ts, listErr := a.b.ListTables(ctx, name)
	if listErr != nil {
		return nil, listErr
	}
	if len(ts) == 0 {
		return nil, err
	}
	return a.assumed(name), nil
}

// instanceForTables is instanceAt for a table call: in emulator mode an
// instance that was never created looks like one with a single cluster.
func (a *Admin) instanceForTables(ctx context.Context, field, name string) (*instance, error) {
	i, err := a.instanceAt(ctx, field, name)
	if a.o.Emulator && fault.KindOf(err) == fault.NotFound {
		return a.assumed(name), nil
	}
	return i, err
}

// assumed is what an instance that was never created looks like in emulator mode.
// It has every feature.
func (a *Admin) assumed(name string) *instance {
	parts := strings.Split(name, "/")
	i := &instance{
		pb: &adminpb.Instance{Name: name, DisplayName: parts[3], State: adminpb.Instance_READY, Type: adminpb.Instance_PRODUCTION,
			Edition: adminpb.Instance_ENTERPRISE_PLUS},
		clusters: map[string]*adminpb.Cluster{defaultCluster: {
			Name:     name + "/clusters/" + defaultCluster,
			Location: "projects/" + parts[1] + "/locations/" + a.o.Zone,
			State:    adminpb.Cluster_READY, ServeNodes: 1, DefaultStorageType: adminpb.StorageType_SSD,
		}},
		profiles: map[string]*adminpb.AppProfile{},
	}
	i.addDefaultProfile()
	return i
}

// instancesIn returns the instances of a project, or of all ("projects/-"), sorted
// by name. In emulator mode those that have tables are among them.
func (a *Admin) instancesIn(ctx context.Context, project string) ([]*instance, error) {
	var out []*instance
	known := map[string]bool{}
	below := project + "/instances/"
	if project == "projects/-" {
		project, below = "projects", "projects/"
	}
	err := a.b.ListRecords(ctx, instancePrefix+below, func(_ string, b []byte, version uint64) error {
		i, err := unmarshalInstance(b)
		if err != nil {
			return err
		}
		known[i.pb.GetName()] = true
		if !i.deleting {
			i.version = version
			out = append(out, i)
		}
		return nil
	})
	if err != nil || !a.o.Emulator {
		return out, err
	}
	ts, err := a.b.ListTables(ctx, project)
	if err != nil {
		return nil, err
	}
	for _, t := range ts {
		if name, _, _ := strings.Cut(t.Name, "/tables/"); !known[name] {
			known[name] = true
			out = append(out, a.assumed(name))
		}
	}
	slices.SortFunc(out, func(a, b *instance) int { return strings.Compare(a.pb.GetName(), b.pb.GetName()) })
	return out, nil
}

// putInstance stores i if its record was not changed since it was read.
func (a *Admin) putInstance(ctx context.Context, i *instance) error {
	b, err := i.marshal()
	if err != nil {
		return err
	}
	// Whatever comes back: the change may have been made.
	defer a.profiles.forget(i.pb.GetName())
	v, err := a.b.PutRecord(ctx, instancePrefix+i.pb.GetName(), b, i.version)
	if err == nil {
		i.version = v
	}
	return err
}

// changeInstance applies change to the instance called name and stores it,
// again and again until no other change comes in between. An error of change
// is returned as it is.
func (a *Admin) changeInstance(ctx context.Context, field, name string, change func(*instance) error) (*instance, error) {
	for {
		i, err := a.instanceAt(ctx, field, name)
		if err != nil {
			return nil, err
		}
		if err := change(i); err != nil {
			return nil, err
		}
		err = a.putInstance(ctx, i)
		if err == nil {
			return i, nil
		}
		if fault.KindOf(err) != fault.Aborted {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// instanceNames is instanceAt for a parent that may be the wildcard "-":
// every instance of the project.
func (a *Admin) instancesAt(ctx context.Context, field string, ids []string) ([]*instance, error) {
	if ids[1] == "-" {
		return a.instancesIn(ctx, parent(ids, instanceForm, 1))
	}
	i, err := a.instanceToShow(ctx, field, parent(ids, instanceForm, 2))
	if err != nil {
		return nil, err
	}
	return []*instance{i}, nil
}
