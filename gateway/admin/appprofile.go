package admin

import (
	"context"
	"sort"
	"unicode/utf8"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/wire"
)

const (
	tableIDPattern = "[_a-zA-Z0-9][-_.a-zA-Z0-9]*"
	maxProfileID   = 50
	maxDescription = 140
	// maxProfiles bounds the record of an instance.
	maxProfiles = 2000
)

// addDefaultProfile adds the profile of requests that name none. With one
// cluster it allows single-row transactions.
func (i *instance) addDefaultProfile() {
	p := &adminpb.AppProfile{Name: i.pb.GetName() + "/appProfiles/" + defaultProfile}
	if ids := i.clusterIDs(); len(ids) == 1 {
		p.RoutingPolicy = &adminpb.AppProfile_SingleClusterRouting_{SingleClusterRouting: &adminpb.AppProfile_SingleClusterRouting{
			ClusterId: ids[0], AllowTransactionalWrites: true,
		}}
	} else {
		p.RoutingPolicy = &adminpb.AppProfile_MultiClusterRoutingUseAny_{MultiClusterRoutingUseAny: &adminpb.AppProfile_MultiClusterRoutingUseAny{}}
	}
	defaultIsolation(p)
	i.profiles[defaultProfile] = p
}

// routedTo returns the clusters that a profile names.
func routedTo(p *adminpb.AppProfile) []string {
	if s := p.GetSingleClusterRouting(); s != nil {
		return []string{s.GetClusterId()}
	}
	return p.GetMultiClusterRoutingUseAny().GetClusterIds()
}

// defaultIsolation makes the isolation explicit: the deprecated priority, and
// none at all, are standard isolation.
func defaultIsolation(p *adminpb.AppProfile) {
	standard := p.GetStandardIsolation()
	switch iso := p.GetIsolation().(type) {
	case *adminpb.AppProfile_DataBoostIsolationReadOnly_:
		if iso.DataBoostIsolationReadOnly.GetComputeBillingOwner() == adminpb.AppProfile_DataBoostIsolationReadOnly_COMPUTE_BILLING_OWNER_UNSPECIFIED {
			iso.DataBoostIsolationReadOnly.ComputeBillingOwner = adminpb.AppProfile_DataBoostIsolationReadOnly_HOST_PAYS.Enum()
		}
		return
	case *adminpb.AppProfile_Priority_:
		standard = &adminpb.AppProfile_StandardIsolation{Priority: iso.Priority} //nolint:staticcheck // clients may still send it
	}
	if standard == nil {
		standard = new(adminpb.AppProfile_StandardIsolation)
	}
	if standard.Priority == adminpb.AppProfile_PRIORITY_UNSPECIFIED {
		standard.Priority = adminpb.AppProfile_PRIORITY_HIGH
	}
	p.Isolation = &adminpb.AppProfile_StandardIsolation_{StandardIsolation: standard}
}

// checkProfile refuses settings that p, one of i's profiles, cannot have.
func checkProfile(i *instance, p *adminpb.AppProfile, ignoreWarnings bool) error {
	if n := utf8.RuneCountInString(p.GetDescription()); n > maxDescription {
		return refuse(fault.Invalid, "description", "Error in field 'description' : Length should be between [0,%d], but found %d", maxDescription, n)
	}
	single := p.GetSingleClusterRouting()
	switch p.GetRoutingPolicy().(type) {
	case *adminpb.AppProfile_SingleClusterRouting_:
		if i.clusters[single.GetClusterId()] == nil {
			return missing("single_cluster_routing.cluster_id", "Cluster", i.pb.GetName()+"/clusters/"+single.GetClusterId())
		}
	case *adminpb.AppProfile_MultiClusterRoutingUseAny_:
		seen := map[string]bool{}
		for _, c := range p.GetMultiClusterRoutingUseAny().GetClusterIds() {
			if i.clusters[c] == nil {
				return missing("multi_cluster_routing_use_any.cluster_ids", "Cluster", i.pb.GetName()+"/clusters/"+c)
			}
			if seen[c] {
				return refuse(fault.Invalid, "multi_cluster_routing_use_any.cluster_ids", "Error in field 'cluster_ids' : Duplicate cluster id '%s'", c)
			}
			seen[c] = true
		}
	default:
		return refuse(fault.Invalid, "routing_policy", "Error in field 'routing_policy' : One of 'multi_cluster_routing_use_any' and 'single_cluster_routing' must be specified")
	}
	if _, ok := adminpb.AppProfile_Priority_name[int32(p.GetStandardIsolation().GetPriority())]; !ok {
		return refuse(fault.Invalid, "standard_isolation.priority", "Error in field 'priority' : Unknown value %d", p.GetStandardIsolation().GetPriority())
	}
	if boost := p.GetDataBoostIsolationReadOnly(); boost != nil {
		if boost.GetComputeBillingOwner() != adminpb.AppProfile_DataBoostIsolationReadOnly_HOST_PAYS {
			return refuse(fault.Invalid, "data_boost_isolation_read_only.compute_billing_owner", "Error in field 'compute_billing_owner' : Unknown value %d", boost.GetComputeBillingOwner())
		}
		if single == nil {
			return refuse(fault.Invalid, "data_boost_isolation_read_only", "Data Boost requires 'single_cluster_routing'")
		}
		if single.GetAllowTransactionalWrites() {
			return refuse(fault.Invalid, "single_cluster_routing.allow_transactional_writes", "Data Boost is read only and does not allow transactional writes")
		}
	}
	if single.GetAllowTransactionalWrites() && !ignoreWarnings {
		for _, other := range i.profileIDs() {
			o := i.profiles[other].GetSingleClusterRouting()
			if o.GetAllowTransactionalWrites() && o.GetClusterId() != single.GetClusterId() {
				return refuse(fault.FailedPrecondition, "single_cluster_routing.allow_transactional_writes",
					"App profile '%s' allows transactional writes in cluster '%s'; allowing them in cluster '%s' too may conflict. Set 'ignore_warnings' to do it anyway.",
					other, o.GetClusterId(), single.GetClusterId())
			}
		}
	}
	return nil
}

// CreateAppProfile implements I16.
func (s *instanceServer) CreateAppProfile(ctx context.Context, req *adminpb.CreateAppProfileRequest) (*adminpb.AppProfile, error) {
	ids, err := s.parse("parent", instanceForm, req.GetParent())
	if err != nil {
		return nil, err
	}
	id := req.GetAppProfileId()
	if err := newID("app_profile_id", "appProfiles", id, tableIDPattern, wire.TableID, 1, maxProfileID); err != nil {
		return nil, err
	}
	if req.GetAppProfile() == nil {
		return nil, refuse(fault.Invalid, "app_profile", "Error in field 'app_profile' : Must be specified")
	}
	name := parent(ids, instanceForm, 2)
	p := proto.Clone(req.GetAppProfile()).(*adminpb.AppProfile)
	p.Name, p.Etag = name+"/appProfiles/"+id, ""
	defaultIsolation(p)
	_, err = s.changeInstance(ctx, "parent", name, func(i *instance) error {
		if i.profiles[id] != nil {
			return alreadyThere("app_profile_id", "App profile", p.GetName())
		}
		if len(i.profiles) >= maxProfiles {
			return refuse(fault.Exhausted, "parent", "Quota exceeded for quota metric 'app profiles' and limit 'app profiles per instance': %d", maxProfiles)
		}
		i.profiles[id] = p
		return within("app_profile", -1, checkProfile(i, p, req.GetIgnoreWarnings()))
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// GetAppProfile implements I17.
func (s *instanceServer) GetAppProfile(ctx context.Context, req *adminpb.GetAppProfileRequest) (*adminpb.AppProfile, error) {
	ids, err := s.parse("name", profileForm, req.GetName())
	if err != nil {
		return nil, err
	}
	i, err := s.instanceToShow(ctx, "name", parent(ids, profileForm, 2))
	if err != nil {
		return nil, err
	}
	if p := i.profiles[ids[2]]; p != nil {
		return p, nil
	}
	return nil, missing("name", "App profile", req.GetName())
}

// ListAppProfiles implements I18.
func (s *instanceServer) ListAppProfiles(ctx context.Context, req *adminpb.ListAppProfilesRequest) (*adminpb.ListAppProfilesResponse, error) {
	ids, err := s.parse("parent", instanceForm, req.GetParent(), true)
	if err != nil {
		return nil, err
	}
	p, err := s.newPage(ctx, "appProfiles "+req.GetParent(), req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	is, err := s.instancesAt(ctx, "parent", ids)
	if err != nil {
		return nil, err
	}
	var all []*adminpb.AppProfile
	for _, i := range is {
		for _, id := range i.profileIDs() {
			all = append(all, i.profiles[id])
		}
	}
	// Not the order they were found in: "a-b/…" sorts before "a/…".
	sort.Slice(all, func(x, y int) bool { return all[x].GetName() < all[y].GetName() })
	resp := new(adminpb.ListAppProfilesResponse)
	resp.AppProfiles, resp.NextPageToken, err = cut(ctx, s.Admin, p, all, (*adminpb.AppProfile).GetName)
	if err != nil {
		return nil, err
	}
	return resp, nil
}

var profileMask = maskRule{
	allowed: []string{"description", "multi_cluster_routing_use_any", "single_cluster_routing", "priority", "standard_isolation", "data_boost_isolation_read_only"},
	ignored: []string{"etag"},
}

// UpdateAppProfile implements I19.
func (s *instanceServer) UpdateAppProfile(ctx context.Context, req *adminpb.UpdateAppProfileRequest) (*longrunningpb.Operation, error) {
	in := req.GetAppProfile()
	ids, err := s.parse("app_profile.name", profileForm, in.GetName())
	if err != nil {
		return nil, err
	}
	if err := checkMask(req.GetUpdateMask(), in, profileMask); err != nil {
		return nil, err
	}
	var p *adminpb.AppProfile
	_, err = s.changeInstance(ctx, "app_profile.name", parent(ids, profileForm, 2), func(i *instance) error {
		if p = i.profiles[ids[2]]; p == nil {
			return missing("app_profile.name", "App profile", in.GetName())
		}
		// The etag of a profile is empty, as production's is: clients compare
		// profiles as a whole, across updates. Any other etag is out of date.
		if in.GetEtag() != "" {
			return refuse(fault.Aborted, "app_profile.etag", "App profile was changed since it was read: %s", in.GetName())
		}
		applyMask(p, in, req.GetUpdateMask(), profileMask)
		defaultIsolation(p)
		return within("app_profile", -1, checkProfile(i, p, req.GetIgnoreWarnings()))
	})
	if err != nil {
		return nil, err
	}
	return s.finished(ctx, p.GetName(), new(adminpb.UpdateAppProfileMetadata), p)
}

// DeleteAppProfile implements I20.
func (s *instanceServer) DeleteAppProfile(ctx context.Context, req *adminpb.DeleteAppProfileRequest) (*emptypb.Empty, error) {
	ids, err := s.parse("name", profileForm, req.GetName())
	if err != nil {
		return nil, err
	}
	_, err = s.changeInstance(ctx, "name", parent(ids, profileForm, 2), func(i *instance) error {
		if i.profiles[ids[2]] == nil {
			return missing("name", "App profile", req.GetName())
		}
		if ids[2] == defaultProfile {
			return refuse(fault.FailedPrecondition, "name", "The default app profile cannot be deleted: %s", req.GetName())
		}
		delete(i.profiles, ids[2])
		return nil
	})
	if err != nil {
		return nil, err
	}
	return new(emptypb.Empty), nil
}
