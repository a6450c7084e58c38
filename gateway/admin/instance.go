package admin

import (
	"context"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

const (
	minInstanceID, maxInstanceID = 6, 33
	minDisplay, maxDisplay       = 4, 30
	maxLabels                    = 64
	maxTags                      = 50
)

const lowerIDPattern = `[a-z][a-z0-9\\-]+[a-z0-9]`

// CreateInstance implements I1.
func (s *instanceServer) CreateInstance(ctx context.Context, req *adminpb.CreateInstanceRequest) (*longrunningpb.Operation, error) {
	start := timestamppb.New(s.o.Now())
	ids, err := s.parse("parent", projectForm, req.GetParent())
	if err != nil {
		return nil, err
	}
	if err := newID("instance_id", "instances", req.GetInstanceId(), lowerIDPattern, isNewLowerID, minInstanceID, maxInstanceID); err != nil {
		return nil, err
	}
	name := parent(ids, projectForm, 1) + "/instances/" + req.GetInstanceId()
	in := req.GetInstance()
	if in == nil {
		return nil, refuse(fault.Invalid, "instance", "Error in field 'instance' : Must be specified")
	}
	// What is output only is ignored, the name included: clients send back what
	// they have read.
	i := &instance{
		pb: &adminpb.Instance{
			Name: name, DisplayName: in.GetDisplayName(), State: adminpb.Instance_READY, Type: in.GetType(),
			Edition: in.GetEdition(), Labels: maps.Clone(in.GetLabels()), CreateTime: start,
			// tags are input only: they bind the instance in a resource manager,
			// which there is none of.
		},
		clusters: map[string]*adminpb.Cluster{},
		profiles: map[string]*adminpb.AppProfile{},
	}
	if i.pb.Type == adminpb.Instance_TYPE_UNSPECIFIED {
		i.pb.Type = adminpb.Instance_PRODUCTION
	}
	if i.pb.Edition == adminpb.Instance_EDITION_UNSPECIFIED {
		i.pb.Edition = adminpb.Instance_ENTERPRISE
	}
	if err := checkInstance(i.pb); err != nil {
		return nil, within("instance", -1, err)
	}
	if err := checkTags(in.GetTags()); err != nil {
		return nil, within("instance", -1, err)
	}
	if len(req.GetClusters()) == 0 {
		return nil, refuse(fault.Invalid, "clusters", "Error in field 'clusters' : Need to have at least one cluster map element in CreateInstanceRequest.")
	}
	for _, id := range slices.Sorted(maps.Keys(req.GetClusters())) {
		c, err := newCluster(i, id, req.GetClusters()[id])
		if err != nil {
			return nil, within("clusters", -1, err)
		}
		i.clusters[id] = c
	}
	i.addDefaultProfile()

	for {
		old, err := s.readInstance(ctx, name)
		if err != nil {
			return nil, err
		}
		if old == nil {
			break
		}
		if !old.deleting {
			return nil, alreadyThere("instance_id", "Instance", name)
		}
		if err := s.putInstance(ctx, old); fault.KindOf(err) == fault.Aborted && ctx.Err() == nil {
			continue
		} else if err != nil {
			return nil, err
		}
		if finished, err := s.finishDelete(ctx, old); err != nil {
			return nil, err
		} else if !finished {
			return nil, fault.New(fault.Aborted, "Another call deletes or creates instance %s", name)
		}
		break
	}
	if err := s.putInstance(ctx, i); fault.KindOf(err) == fault.Aborted {
		return nil, alreadyThere("instance_id", "Instance", name)
	} else if err != nil {
		return nil, err
	}
	return s.finished(ctx, name, &adminpb.CreateInstanceMetadata{
		OriginalRequest: req, RequestTime: start, FinishTime: timestamppb.New(s.o.Now()),
	}, i.pb)
}

func alreadyThere(field, kind, name string) error {
	return refuse(fault.AlreadyExists, field, "%s already exists: %s", kind, name)
}

// checkInstance refuses settings that an instance cannot have.
func checkInstance(pb *adminpb.Instance) error {
	if n := utf8.RuneCountInString(pb.GetDisplayName()); n < minDisplay || n > maxDisplay {
		return refuse(fault.Invalid, "display_name", "Error in field 'display_name' : Length should be between [%d,%d], but found %d '%s'",
			minDisplay, maxDisplay, n, pb.GetDisplayName())
	}
	if _, ok := adminpb.Instance_Type_name[int32(pb.GetType())]; !ok {
		return refuse(fault.Invalid, "type", "Error in field 'type' : Unknown value %d", pb.GetType())
	}
	if _, ok := adminpb.Instance_Edition_name[int32(pb.GetEdition())]; !ok {
		return refuse(fault.Invalid, "edition", "Error in field 'edition' : Unknown value %d", pb.GetEdition())
	}
	if n := len(pb.GetLabels()); n > maxLabels {
		return refuse(fault.Invalid, "labels", "Error in field 'labels' : At most %d labels are allowed, but found %d", maxLabels, n)
	}
	for _, k := range slices.Sorted(maps.Keys(pb.GetLabels())) {
		if !isLabel(k, true) {
			return refuse(fault.Invalid, "labels", `Error in field 'labels' : Key '%s' should match [\p{Ll}\p{Lo}][\p{Ll}\p{Lo}\p{N}_-]{0,62} and be shorter than 128 bytes`, k)
		}
		if v := pb.GetLabels()[k]; !isLabel(v, false) {
			return refuse(fault.Invalid, "labels", `Error in field 'labels' : Value '%s' of key '%s' should match [\p{Ll}\p{Lo}\p{N}_-]{0,63} and be shorter than 128 bytes`, v, k)
		}
	}
	return nil
}

// checkTags refuses what is not of the form of tags, "tagKeys/123":
// "tagValues/456" or "123/environment": "production".
func checkTags(tags map[string]string) error {
	if n := len(tags); n > maxTags {
		return refuse(fault.Invalid, "tags", "Error in field 'tags' : At most %d tags are allowed, but found %d", maxTags, n)
	}
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		of, name, ok := strings.Cut(k, "/")
		if !ok || of == "" || name == "" || strings.Contains(name, "/") {
			return refuse(fault.Invalid, "tags", "Error in field 'tags' : Key '%s' should have the form 'tagKeys/<id>' or '<parent_id>/<short_name>'", k)
		}
		v := tags[k]
		if id, ok := strings.CutPrefix(v, "tagValues/"); v == "" || of == "tagKeys" && (!ok || id == "") {
			return refuse(fault.Invalid, "tags", "Error in field 'tags' : Value '%s' of key '%s' should have the form 'tagValues/<id>', or be a short name if the key is", v, k)
		}
	}
	return nil
}

// isLabel tells whether s may be the key or the value of a label.
func isLabel(s string, key bool) bool {
	if len(s) >= 128 || utf8.RuneCountInString(s) > 63 || key && s == "" {
		return false
	}
	for i, r := range s {
		letter := unicode.In(r, unicode.Ll, unicode.Lo)
		if !letter && (key && i == 0 || !unicode.Is(unicode.N, r) && r != '_' && r != '-') {
			return false
		}
	}
	return true
}

// GetInstance implements I2.
func (s *instanceServer) GetInstance(ctx context.Context, req *adminpb.GetInstanceRequest) (*adminpb.Instance, error) {
	ids, err := s.parse("name", instanceForm, req.GetName())
	if err != nil {
		return nil, err
	}
	i, err := s.instanceToShow(ctx, "name", parent(ids, instanceForm, 2))
	if err != nil {
		return nil, err
	}
	return i.pb, nil
}

// ListInstances implements I3. It gives everything, whatever page_token says.
func (s *instanceServer) ListInstances(ctx context.Context, req *adminpb.ListInstancesRequest) (*adminpb.ListInstancesResponse, error) {
	ids, err := s.parse("parent", projectForm, req.GetParent())
	if err != nil {
		return nil, err
	}
	is, err := s.instancesIn(ctx, parent(ids, projectForm, 1))
	if err != nil {
		return nil, err
	}
	resp := new(adminpb.ListInstancesResponse)
	for _, i := range is {
		resp.Instances = append(resp.Instances, i.pb)
	}
	return resp, nil
}

// UpdateInstance implements I4: it replaces display name and type.
func (s *instanceServer) UpdateInstance(ctx context.Context, req *adminpb.Instance) (*adminpb.Instance, error) {
	ids, err := s.parse("name", instanceForm, req.GetName())
	if err != nil {
		return nil, err
	}
	i, err := s.changeInstance(ctx, "name", parent(ids, instanceForm, 2), func(i *instance) error {
		i.pb.DisplayName = req.GetDisplayName()
		if req.GetType() != adminpb.Instance_TYPE_UNSPECIFIED {
			i.pb.Type = req.GetType()
		}
		return checkInstance(i.pb)
	})
	if err != nil {
		return nil, err
	}
	return i.pb, nil
}

var instanceMask = maskRule{allowed: []string{"display_name", "labels", "type", "edition"}}

// PartialUpdateInstance implements I5.
func (s *instanceServer) PartialUpdateInstance(ctx context.Context, req *adminpb.PartialUpdateInstanceRequest) (*longrunningpb.Operation, error) {
	start := timestamppb.New(s.o.Now())
	in := req.GetInstance()
	ids, err := s.parse("instance.name", instanceForm, in.GetName())
	if err != nil {
		return nil, err
	}
	if err := checkMask(req.GetUpdateMask(), in, instanceMask); err != nil {
		return nil, err
	}
	name := parent(ids, instanceForm, 2)
	i, err := s.changeInstance(ctx, "instance.name", name, func(i *instance) error {
		was := proto.Clone(i.pb).(*adminpb.Instance)
		applyMask(i.pb, in, req.GetUpdateMask(), instanceMask)
		if i.pb.Type == adminpb.Instance_TYPE_UNSPECIFIED {
			i.pb.Type = was.GetType()
		}
		if i.pb.Edition == adminpb.Instance_EDITION_UNSPECIFIED {
			i.pb.Edition = adminpb.Instance_ENTERPRISE
		}
		if was.GetEdition() == adminpb.Instance_ENTERPRISE_PLUS && i.pb.GetEdition() != was.GetEdition() {
			if err := s.noPlusFeatures(ctx, name); err != nil {
				return err
			}
		}
		return within("instance", -1, checkInstance(i.pb))
	})
	if err != nil {
		return nil, err
	}
	return s.finished(ctx, name, &adminpb.UpdateInstanceMetadata{
		OriginalRequest: req, RequestTime: start, FinishTime: timestamppb.New(s.o.Now()),
	}, i.pb)
}

// noPlusFeatures refuses to leave Enterprise Plus while a table uses it.
func (a *Admin) noPlusFeatures(ctx context.Context, name string) error {
	ts, err := a.b.ListTables(ctx, name)
	if err != nil {
		return err
	}
	for _, t := range ts {
		x, err := tableExtra(t)
		if err != nil {
			return err
		}
		if len(x.GetAutomatedBackupPolicy().GetLocations()) > 0 {
			return refuse(fault.FailedPrecondition, "instance.edition", "Table %s has automated_backup_policy.locations, which only the ENTERPRISE_PLUS edition has", t.Name)
		}
	}
	return nil
}

// DeleteInstance implements I6.
func (s *instanceServer) DeleteInstance(ctx context.Context, req *adminpb.DeleteInstanceRequest) (*emptypb.Empty, error) {
	ids, err := s.parse("name", instanceForm, req.GetName())
	if err != nil {
		return nil, err
	}
	name := parent(ids, instanceForm, 2)
	s.places.Lock()
	defer s.places.Unlock()
	for {
		i, err := s.readInstance(ctx, name)
		if err != nil {
			return nil, err
		}
		if i == nil {
			return nil, missing("name", "Instance", name)
		}
		if !i.deleting {
			if err := s.noProtectedTables(ctx, name); err != nil {
				return nil, err
			}
			if err := s.noBackupsLocked(ctx, "Instance", name, name+"/clusters/"); err != nil {
				return nil, err
			}
		}
		marked := i.deleting
		// From here on no table can be added.
		i.deleting = true
		if err := s.putInstance(ctx, i); fault.KindOf(err) == fault.Aborted && ctx.Err() == nil {
			continue
		} else if err != nil {
			return nil, err
		}
		if !marked {
			if err := s.noProtectedTables(ctx, name); err != nil {
				i.deleting = false
				if e := s.putInstance(ctx, i); e != nil {
					return nil, e
				}
				return nil, err
			}
		}
		// A call that overtakes us finishes it.
		if _, err := s.finishDelete(ctx, i); err != nil {
			return nil, err
		}
		return new(emptypb.Empty), nil
	}
}

func (a *Admin) noProtectedTables(ctx context.Context, name string) error {
	ts, err := a.b.ListTables(ctx, name)
	if err != nil {
		return err
	}
	for _, t := range ts {
		if t.DeletionProtection {
			return refuse(fault.FailedPrecondition, "name", "Instance %s cannot be deleted: table %s has deletion protection", name, t.Name)
		}
		if t.ChangeStream() != nil {
			return refuse(fault.FailedPrecondition, "name", "Instance %s cannot be deleted: disable the change stream of table %s first, which that would end", name, t.Name)
		}
		if err := a.noProtectedViews(ctx, "Instance "+name, t); err != nil {
			return err
		}
	}
	if err := a.noProtectedMaterialized(ctx, name); err != nil {
		return err
	}
	return a.noProtectedLogicalViews(ctx, name)
}

// finishDelete removes what is left of an instance that is marked as deleted:
// tables, policies, what was below tables, and at last the record. The caller has just
// stored i. A call that stores the record after it finishes the deletion in its place: then it
// stops, since a new instance of the name may be there, and has not finished.
func (a *Admin) finishDelete(ctx context.Context, i *instance) (finished bool, err error) {
	name := i.pb.GetName()
	// Views before the tables that they are made of.
	vs, err := a.v.ListViews(ctx, name)
	if err != nil {
		return false, err
	}
	for _, v := range vs {
		if ours, err := a.stillDeleting(ctx, i); !ours {
			return false, err
		}
		if err := a.dropMaterialized(ctx, v); err != nil {
			return false, err
		}
	}
	ts, err := a.b.ListTables(ctx, name)
	if err != nil {
		return false, err
	}
	for _, t := range ts {
		if ours, err := a.stillDeleting(ctx, i); !ours {
			return false, err
		}
		if t.DeletionProtection {
			// Protected after we looked, by a call that came to the instance before
			// it was marked. There is no instance any more through which to undo it.
			_, err := a.b.UpdateTable(ctx, t.Name, func(now *schema.Table) error {
				if now.ID != t.ID {
					return missing("", tableForm.kind, t.Name)
				}
				now.DeletionProtection = false
				return nil
			})
			if fault.KindOf(err) == fault.NotFound {
				continue
			} else if err != nil {
				return false, err
			}
		}
		if err := a.b.DeleteTable(ctx, t.Name); err != nil && fault.KindOf(err) != fault.NotFound {
			return false, err
		}
	}
	for _, prefix := range []string{policyPrefix, views.prefix, bundles.prefix, schedulePrefix, logicalPrefix} {
		records, err := a.recordsBelow(ctx, prefix+name)
		if err != nil {
			return false, err
		}
		// What was listed before is the old instance's.
		if ours, err := a.stillDeleting(ctx, i); !ours {
			return false, err
		}
		if err := a.dropRecords(ctx, records); err != nil {
			return false, err
		}
	}
	defer a.profiles.forget(name)
	switch err := a.b.DeleteRecord(ctx, instancePrefix+name, i.version); fault.KindOf(err) {
	case fault.NotFound, fault.Aborted:
		return false, nil
	default:
		return err == nil, err
	}
}

// stillDeleting tells whether the record of an instance is as i was stored.
func (a *Admin) stillDeleting(ctx context.Context, i *instance) (bool, error) {
	now, err := a.readInstance(ctx, i.pb.GetName())
	return now != nil && now.deleting && now.version == i.version, err
}

// EnsureDefaults makes the default instance the first time a store is used. It
// does not bring it back once it was deleted.
func (a *Admin) EnsureDefaults(ctx context.Context) error {
	const marker = "setup/defaults"
	if _, _, err := a.b.GetRecord(ctx, marker); fault.KindOf(err) != fault.NotFound {
		return err
	}
	if err := a.EnsureInstance(ctx, DefaultInstance); err != nil {
		return err
	}
	if _, err := a.b.PutRecord(ctx, marker, []byte("1"), 0); err != nil && fault.KindOf(err) != fault.Aborted {
		return err
	}
	return nil
}

// EnsureInstance makes an instance with one cluster, for a caller that does
// not come through the API, unless it is there.
func (a *Admin) EnsureInstance(ctx context.Context, name string) error {
	if i, err := a.readInstance(ctx, name); err != nil || i != nil && !i.deleting {
		return err
	}
	ids := instanceForm.split(name)
	i := &instance{
		pb: &adminpb.Instance{
			Name: name, DisplayName: ids[1], State: adminpb.Instance_READY, Type: adminpb.Instance_PRODUCTION,
			Edition: adminpb.Instance_ENTERPRISE, CreateTime: timestamppb.New(a.o.Now()),
		},
		clusters: map[string]*adminpb.Cluster{defaultCluster: {
			Name: name + "/clusters/" + defaultCluster, State: adminpb.Cluster_READY, ServeNodes: 1,
			Location:           strings.Join([]string{"projects", ids[0], "locations", a.o.Zone}, "/"),
			DefaultStorageType: adminpb.StorageType_SSD,
		}},
		profiles: map[string]*adminpb.AppProfile{},
	}
	i.addDefaultProfile()
	// Aborted: another call was first.
	if err := a.putInstance(ctx, i); err != nil && fault.KindOf(err) != fault.Aborted {
		return err
	}
	return nil
}
