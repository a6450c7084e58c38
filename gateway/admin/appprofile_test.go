package admin

import (
	"context"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/fault"
)

func single(cluster string, transactions bool) *adminpb.AppProfile {
	return &adminpb.AppProfile{RoutingPolicy: &adminpb.AppProfile_SingleClusterRouting_{
		SingleClusterRouting: &adminpb.AppProfile_SingleClusterRouting{ClusterId: cluster, AllowTransactionalWrites: transactions},
	}}
}

func multi(clusters ...string) *adminpb.AppProfile {
	return &adminpb.AppProfile{RoutingPolicy: &adminpb.AppProfile_MultiClusterRoutingUseAny_{
		MultiClusterRoutingUseAny: &adminpb.AppProfile_MultiClusterRoutingUseAny{ClusterIds: clusters},
	}}
}

func boosted(p *adminpb.AppProfile) *adminpb.AppProfile {
	p.Isolation = &adminpb.AppProfile_DataBoostIsolationReadOnly_{DataBoostIsolationReadOnly: new(adminpb.AppProfile_DataBoostIsolationReadOnly)}
	return p
}

func standard(p *adminpb.AppProfile, prio adminpb.AppProfile_Priority) *adminpb.AppProfile {
	p.Isolation = &adminpb.AppProfile_StandardIsolation_{StandardIsolation: &adminpb.AppProfile_StandardIsolation{Priority: prio}}
	return p
}

func (s *server) profile(t testing.TB, id string, p *adminpb.AppProfile) *adminpb.AppProfile {
	t.Helper()
	return must(s.inst.CreateAppProfile(t.Context(), &adminpb.CreateAppProfileRequest{Parent: testInstance, AppProfileId: id, AppProfile: p}))(t)
}

func TestCreateAppProfile(t *testing.T) {
	s := strict(t)
	affine := multi("cluster-two")
	affine.GetMultiClusterRoutingUseAny().Affinity = &adminpb.AppProfile_MultiClusterRoutingUseAny_RowAffinity_{RowAffinity: new(adminpb.AppProfile_MultiClusterRoutingUseAny_RowAffinity)}
	old := multi()
	old.Isolation = &adminpb.AppProfile_Priority_{Priority: adminpb.AppProfile_PRIORITY_LOW} //nolint:staticcheck // what old clients send
	boost := boosted(single("cluster-one", false))
	boost.GetDataBoostIsolationReadOnly().ComputeBillingOwner = adminpb.AppProfile_DataBoostIsolationReadOnly_HOST_PAYS.Enum()
	for id, c := range map[string]struct{ in, want *adminpb.AppProfile }{
		"single":  {single("cluster-one", false), standard(single("cluster-one", false), adminpb.AppProfile_PRIORITY_HIGH)},
		"trans":   {standard(single("cluster-one", true), 0), standard(single("cluster-one", true), adminpb.AppProfile_PRIORITY_HIGH)},
		"medium":  {standard(multi(), adminpb.AppProfile_PRIORITY_MEDIUM), standard(multi(), adminpb.AppProfile_PRIORITY_MEDIUM)},
		"affine":  {affine, standard(proto.Clone(affine).(*adminpb.AppProfile), adminpb.AppProfile_PRIORITY_HIGH)},
		"old":     {old, standard(multi(), adminpb.AppProfile_PRIORITY_LOW)},
		"boost":   {boosted(single("cluster-one", false)), boost},
		"_Dotty.": {multi("cluster-one", "cluster-two"), standard(multi("cluster-one", "cluster-two"), adminpb.AppProfile_PRIORITY_HIGH)},
	} {
		c.in.Description, c.want.Description = "what for", "what for"
		c.in.Name, c.in.Etag = "ignored", "ignored"
		c.want.Name = testInstance + "/appProfiles/" + id
		made := s.profile(t, id, c.in)
		read := must(s.inst.GetAppProfile(t.Context(), &adminpb.GetAppProfileRequest{Name: c.want.Name}))(t)
		if !proto.Equal(made, c.want) || !proto.Equal(read, c.want) {
			t.Errorf("%s: made\n%v\nread\n%v\nwant\n%v", id, made, read, c.want)
		}
	}

	// Paging, over one instance and over all of a project.
	s.createInstance(t, "inst-one-b", "cluster-one")
	for parent, want := range map[string]int{testInstance: 8, testProject + "/instances/-": 9} {
		var names []string
		req := &adminpb.ListAppProfilesRequest{Parent: parent, PageSize: 3}
		for {
			l := must(s.inst.ListAppProfiles(t.Context(), req))(t)
			for _, p := range l.AppProfiles {
				names = append(names, p.Name)
			}
			if l.NextPageToken == "" {
				break
			}
			req = &adminpb.ListAppProfilesRequest{Parent: parent, PageToken: l.NextPageToken}
		}
		seen := map[string]bool{}
		for _, n := range names {
			seen[n] = true
		}
		if len(names) != want || len(seen) != want || !seen[testInstance+"/appProfiles/default"] {
			t.Errorf("%s: %v", parent, names)
		}
	}
}

func TestAppProfileRefusals(t *testing.T) {
	s := strict(t)
	s.profile(t, "there", single("cluster-one", true))
	s.profile(t, "other", single("cluster-two", false))
	create := func(id string, p *adminpb.AppProfile) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			return drop(s.inst.CreateAppProfile(ctx, &adminpb.CreateAppProfileRequest{Parent: testInstance, AppProfileId: id, AppProfile: p}))
		}
	}
	described := multi()
	described.Description = strings.Repeat("d", 141)
	change := func(p *adminpb.AppProfile, paths ...string) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			if p != nil && p.Name == "" {
				p.Name = testInstance + "/appProfiles/there"
			}
			return drop(s.inst.UpdateAppProfile(ctx, &adminpb.UpdateAppProfileRequest{AppProfile: p, UpdateMask: mask(paths...)}))
		}
	}
	list := func(r *adminpb.ListAppProfilesRequest) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error { return drop(s.inst.ListAppProfiles(ctx, r)) }
	}
	del := func(name string) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			return drop(s.inst.DeleteAppProfile(ctx, &adminpb.DeleteAppProfileRequest{Name: name}))
		}
	}
	const invalid = codes.InvalidArgument
	checkRefusals(t, s, []refusal{
		{"no id", create("", multi()), invalid, "Error in field 'app_profile_id' : Invalid id for collection appProfiles : Length should be between [1,50], but found 0", "app_profile_id"},
		{"bad id", create("a b", multi()), invalid, "Should match [_a-zA-Z0-9][-_.a-zA-Z0-9]* but found 'a b'", "app_profile_id"},
		{"exists", create("there", multi()), codes.AlreadyExists, "App profile already exists: " + testInstance + "/appProfiles/there", ""},
		{"default exists", create("default", multi()), codes.AlreadyExists, "App profile already exists", ""},
		{"nothing", create("new", nil), invalid, "Must be specified", "app_profile"},
		{"no routing", create("new", new(adminpb.AppProfile)), invalid, "One of 'multi_cluster_routing_use_any' and 'single_cluster_routing'", "app_profile.routing_policy"},
		{"no cluster", create("new", single("", false)), codes.NotFound, "Cluster not found", ""},
		{"missing cluster", create("new", single("cluster-x", false)), codes.NotFound, "Cluster not found: " + testInstance + "/clusters/cluster-x", ""},
		{"missing cluster in group", create("new", multi("cluster-one", "cluster-x")), codes.NotFound, "clusters/cluster-x", ""},
		{"cluster twice", create("new", multi("cluster-one", "cluster-one")), invalid, "Duplicate cluster id 'cluster-one'", "app_profile.multi_cluster_routing_use_any.cluster_ids"},
		{"description", create("new", described), invalid, "[0,140], but found 141", "app_profile.description"},
		{"priority", create("new", standard(multi(), 9)), invalid, "Unknown value 9", "app_profile.standard_isolation.priority"},
		{"boost of many", create("new", boosted(multi())), invalid, "Data Boost requires 'single_cluster_routing'", "app_profile.data_boost_isolation_read_only"},
		{"boost with transactions", create("new", boosted(single("cluster-one", true))), invalid, "read only", "app_profile.single_cluster_routing.allow_transactional_writes"},
		{"transactions in two clusters", create("new", single("cluster-two", true)), codes.FailedPrecondition, "App profile 'there' allows transactional writes in cluster 'cluster-one'", ""},
		{"nowhere", func(ctx context.Context, s *server) error {
			return drop(s.inst.CreateAppProfile(ctx, &adminpb.CreateAppProfileRequest{Parent: testInstance + "x", AppProfileId: "new", AppProfile: multi()}))
		}, codes.NotFound, "Instance not found", ""},
		{"malformed", func(ctx context.Context, s *server) error {
			return drop(s.inst.CreateAppProfile(ctx, &adminpb.CreateAppProfileRequest{Parent: "x", AppProfileId: "new", AppProfile: multi()}))
		}, invalid, "When parsing", "parent"},
		{"get missing", func(ctx context.Context, s *server) error {
			return drop(s.inst.GetAppProfile(ctx, &adminpb.GetAppProfileRequest{Name: testInstance + "/appProfiles/new"}))
		}, codes.NotFound, "App profile not found: " + testInstance + "/appProfiles/new", ""},
		{"get malformed", func(ctx context.Context, s *server) error {
			return drop(s.inst.GetAppProfile(ctx, &adminpb.GetAppProfileRequest{Name: "new"}))
		}, invalid, "App profile name expected in the form 'projects/<project_id>/instances/<instance_id>/appProfiles/<app_profile_id>'.", "name"},
		{"list negative", list(&adminpb.ListAppProfilesRequest{Parent: testInstance, PageSize: -5}), invalid, "Must not be negative", "page_size"},
		{"list garbage", list(&adminpb.ListAppProfilesRequest{Parent: testInstance, PageToken: "x"}), invalid, "Not a token", "page_token"},
		{"list nowhere", list(&adminpb.ListAppProfilesRequest{Parent: testInstance + "x"}), codes.NotFound, "Instance not found", ""},
		{"list malformed", list(&adminpb.ListAppProfilesRequest{Parent: "x"}), invalid, "When parsing", "parent"},
		{"update nothing", change(multi()), invalid, "A non-empty 'update_mask' must be specified", "update_mask"},
		{"update name", change(multi(), "name"), invalid, "Immutable fields 'name' cannot be updated", "update_mask"},
		{"update unknown", change(multi(), "colour"), invalid, "Unknown field 'colour'", "update_mask"},
		{"update etag", change(&adminpb.AppProfile{Etag: "stale", Description: "x"}, "description"), codes.Aborted, "was changed since it was read", ""},
		{"update missing", change(&adminpb.AppProfile{Name: testInstance + "/appProfiles/new"}, "description"), codes.NotFound, "App profile not found", ""},
		{"update none", change(nil, "description"), invalid, "When parsing ''", "app_profile.name"},
		{"update to no routing", change(&adminpb.AppProfile{}, "single_cluster_routing"), invalid, "One of", "app_profile.routing_policy"},
		{"update to missing cluster", change(single("cluster-x", false), "single_cluster_routing"), codes.NotFound, "clusters/cluster-x", ""},
		{"update boost with transactions", change(boosted(&adminpb.AppProfile{}), "data_boost_isolation_read_only"), invalid, "read only", "app_profile.single_cluster_routing.allow_transactional_writes"},
		{"update transactions", change(&adminpb.AppProfile{Name: testInstance + "/appProfiles/other", RoutingPolicy: single("cluster-two", true).RoutingPolicy}, "single_cluster_routing.allow_transactional_writes"), codes.FailedPrecondition, "App profile 'there'", ""},
		{"delete default", del(testInstance + "/appProfiles/default"), codes.FailedPrecondition, "The default app profile cannot be deleted", ""},
		{"delete missing", del(testInstance + "/appProfiles/new"), codes.NotFound, "App profile not found", ""},
		{"delete malformed", del("x"), invalid, "When parsing", "name"},
	})
	must(s.inst.CreateAppProfile(t.Context(), &adminpb.CreateAppProfileRequest{Parent: testInstance, AppProfileId: "two", AppProfile: single("cluster-two", true), IgnoreWarnings: true}))(t)
}

func TestUpdateAppProfile(t *testing.T) {
	s := strict(t)
	name := testInstance + "/appProfiles/prof"
	s.profile(t, "prof", single("cluster-one", false))
	update := func(p *adminpb.AppProfile, paths ...string) *adminpb.AppProfile {
		t.Helper()
		p.Name = name
		got := response(t, must(s.inst.UpdateAppProfile(t.Context(), &adminpb.UpdateAppProfileRequest{AppProfile: p, UpdateMask: mask(paths...)}))(t), new(adminpb.UpdateAppProfileMetadata), new(adminpb.AppProfile))
		if read := must(s.inst.GetAppProfile(t.Context(), &adminpb.GetAppProfileRequest{Name: name}))(t); !proto.Equal(read, got) {
			t.Errorf("the operation says\n%v\nbut GetAppProfile\n%v", got, read)
		}
		if got.Etag != "" {
			t.Errorf("etag %q", got.Etag)
		}
		return got
	}
	if p := update(&adminpb.AppProfile{Description: "d"}, "description"); p.Description != "d" || p.GetSingleClusterRouting().GetClusterId() != "cluster-one" {
		t.Error(p)
	}
	if p := update(multi("cluster-two"), "multi_cluster_routing_use_any"); len(p.GetMultiClusterRoutingUseAny().GetClusterIds()) != 1 || p.Description != "d" {
		t.Error(p)
	}
	if p := update(multi(), "multi_cluster_routing_use_any.cluster_ids"); p.GetMultiClusterRoutingUseAny() == nil || len(p.GetMultiClusterRoutingUseAny().GetClusterIds()) != 0 {
		t.Error(p)
	}
	// What is not set on either side changes nothing.
	if p := update(&adminpb.AppProfile{}, "single_cluster_routing.allow_transactional_writes"); p.GetMultiClusterRoutingUseAny() == nil {
		t.Error(p)
	}
	if p := update(single("cluster-two", true), "single_cluster_routing"); !p.GetSingleClusterRouting().GetAllowTransactionalWrites() {
		t.Error(p)
	}
	if p := update(single("", false), "single_cluster_routing.allow_transactional_writes", "etag"); p.GetSingleClusterRouting().GetAllowTransactionalWrites() || p.GetSingleClusterRouting().GetClusterId() != "cluster-two" {
		t.Error(p)
	}
	if p := update(standard(&adminpb.AppProfile{}, adminpb.AppProfile_PRIORITY_LOW), "standard_isolation"); p.GetStandardIsolation().GetPriority() != adminpb.AppProfile_PRIORITY_LOW {
		t.Error(p)
	}
	old := &adminpb.AppProfile{Isolation: &adminpb.AppProfile_Priority_{Priority: adminpb.AppProfile_PRIORITY_MEDIUM}} //nolint:staticcheck // what old clients send
	if p := update(old, "priority"); p.GetStandardIsolation().GetPriority() != adminpb.AppProfile_PRIORITY_MEDIUM {
		t.Error(p)
	}
	if p := update(boosted(&adminpb.AppProfile{}), "data_boost_isolation_read_only"); p.GetDataBoostIsolationReadOnly().GetComputeBillingOwner() != adminpb.AppProfile_DataBoostIsolationReadOnly_HOST_PAYS {
		t.Error(p)
	}
	must(s.inst.DeleteAppProfile(t.Context(), &adminpb.DeleteAppProfileRequest{Name: name, IgnoreWarnings: true}))(t)
}

func TestProfile(t *testing.T) {
	c := newClock()
	b := model.New(model.Options{})
	s := serve(t, b, Options{Now: c.now})
	s.createInstance(t, "inst-one", "cluster-one", "cluster-two")
	profile := func(a *Admin, id string) Profile {
		t.Helper()
		return must(a.Profile(t.Context(), testInstance, id))(t)
	}
	kind := func(a *Admin, instance, id string) fault.Kind {
		_, err := a.Profile(t.Context(), instance, id)
		return fault.KindOf(err)
	}
	if p := profile(s.admin, ""); p != (Profile{ClusterID: "cluster-one", Zone: "z1"}) {
		t.Error(p)
	}
	if kind(s.admin, testInstance, "tx") != fault.NotFound || kind(s.admin, testInstance+"x", "") != fault.NotFound {
		t.Error("found what is not there")
	}
	if err := s.admin.Instance(t.Context(), testInstance+"x"); fault.KindOf(err) != fault.NotFound {
		t.Error(err)
	}
	other := New(b, Options{Now: c.now})
	if kind(other, testInstance, "tx") != fault.NotFound {
		t.Error("found what is not there")
	}
	// Own changes show at once; those of another gateway after a while.
	s.profile(t, "tx", single("cluster-two", true))
	s.profile(t, "boost", boosted(single("cluster-two", false)))
	if p := profile(s.admin, "tx"); p != (Profile{AllowTransactionalWrites: true, SingleCluster: true, ClusterID: "cluster-two", Zone: "z2"}) {
		t.Error(p)
	}
	if p := profile(s.admin, "boost"); p != (Profile{ReadOnly: true, SingleCluster: true, ClusterID: "cluster-two", Zone: "z2"}) {
		t.Error(p)
	}
	c.add(time.Minute)
	if p := profile(other, "tx"); !p.AllowTransactionalWrites {
		t.Error(p)
	}
	must(s.inst.DeleteAppProfile(t.Context(), &adminpb.DeleteAppProfileRequest{Name: testInstance + "/appProfiles/tx"}))(t)
	if kind(s.admin, testInstance, "tx") != fault.NotFound {
		t.Error("deleted, but found")
	}
	// Names that nobody created do not pile up.
	for i := range 2*maxRoutes + 10 {
		s.admin.Instance(t.Context(), testProject+"/instances/x"+strings.Repeat("y", i%7)+string(rune('a'+i%26))+time.Duration(i).String())
	}
	n := 0
	s.admin.profiles.routes.Load().Range(func(any, any) bool { n++; return true })
	if n > maxRoutes {
		t.Errorf("%d cached", n)
	}
}

// A record that was read before a change is not cached after it.
func TestProfileCacheRace(t *testing.T) {
	s := strict(t)
	a := s.admin
	changes := a.profiles.changes()
	stale := newRoute(must(a.readInstance(t.Context(), testInstance))(t))
	stale.expires = time.Now().Add(time.Hour)
	s.profile(t, "tx", single("cluster-two", true))
	a.profiles.add(testInstance, stale, changes)
	if _, err := a.Profile(t.Context(), testInstance, "tx"); err != nil {
		t.Error(err)
	}
}

func BenchmarkProfile(b *testing.B) {
	s := strict(b)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.admin.Profile(context.Background(), testInstance, ""); err != nil {
				b.Fatal(err)
			}
		}
	})
}
