package admin

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"

	"cloud.google.com/go/iam/apiv1/iampb"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/auth/iam"
)

const policyPrefix = "policies/"

// unsetETag is the etag of a policy that was never set ("ACAB" in base64).
var unsetETag = []byte{0x00, 0x20, 0x01}

// policyKey returns the record of a resource's policy, or a refusal if there
// is no such resource. A table's record has its id, so that a table created
// later under the same name begins without a policy.
func (a *Admin) policyKey(ctx context.Context, resource string, tables bool) (string, error) {
	const field = "resource"
	if tables {
		switch {
		case views.form.split(resource) != nil:
			return views.policyKey(ctx, a, field, resource)
		case bundles.form.split(resource) != nil:
			return bundles.policyKey(ctx, a, field, resource)
		case backupForm.split(resource) != nil:
			if _, err := a.parse(field, backupForm, resource); err != nil {
				return "", err
			}
			// One that is still being created is not there yet, and has no policy.
			b, err := a.b.Backup(ctx, resource)
			if err != nil {
				return "", orMissing(err, field, backupForm.kind, resource)
			}
			return policyOfBackup(b), nil
		}
		t, _, err := a.tableAt(ctx, field, resource)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%s%s#%d", policyPrefix, t.Name, t.ID), nil
	}
	switch {
	case logicalViewForm.split(resource) != nil:
		v, err := a.logicalViewAt(ctx, field, resource)
		if err != nil {
			return "", err
		}
		return policyOfLogicalView(v), nil
	case materializedViewForm.split(resource) != nil:
		t, err := a.materializedAt(ctx, field, resource)
		if err != nil {
			return "", err
		}
		return policyOfMaterialized(t), nil
	}
	ids, err := a.parse(field, instanceForm, resource)
	if err != nil {
		return "", err
	}
	if _, err := a.instanceForTables(ctx, field, parent(ids, instanceForm, 2)); err != nil {
		return "", err
	}
	return policyPrefix + resource, nil
}

// policyAt returns the policy in a record and the record's version, or an
// empty policy and 0.
func (a *Admin) policyAt(ctx context.Context, key string) (*iampb.Policy, uint64, error) {
	b, version, err := a.b.GetRecord(ctx, key)
	if fault.KindOf(err) == fault.NotFound {
		return &iampb.Policy{Etag: unsetETag}, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	p := new(iampb.Policy)
	if err := proto.Unmarshal(b, p); err != nil {
		return nil, 0, fault.New(fault.Corruption, "read policy record: %w", err)
	}
	return p, version, nil
}

// Policy returns the policy of an instance, a table or something below a table,
// by its full resource name; it is empty if none was set.
func (a *Admin) Policy(ctx context.Context, resource string) (*iampb.Policy, error) {
	instances := slices.ContainsFunc([]form{instanceForm, logicalViewForm, materializedViewForm}, func(f form) bool { return f.split(resource) != nil })
	key, err := a.policyKey(ctx, resource, !instances)
	if err != nil {
		return nil, err
	}
	p, _, err := a.policyAt(ctx, key)
	return p, err
}

func (a *Admin) getPolicy(ctx context.Context, req *iampb.GetIamPolicyRequest, tables bool) (*iampb.Policy, error) {
	if v := req.GetOptions().GetRequestedPolicyVersion(); v != 0 && v != 1 && v != 3 {
		return nil, refuse(fault.Invalid, "options.requested_policy_version", "Error in field 'requested_policy_version' : Must be 0, 1 or 3, but found %d", v)
	}
	key, err := a.policyKey(ctx, req.GetResource(), tables)
	if err != nil {
		return nil, err
	}
	p, _, err := a.policyAt(ctx, key)
	return p, err
}

func (a *Admin) setPolicy(ctx context.Context, req *iampb.SetIamPolicyRequest, tables bool) (*iampb.Policy, error) {
	in := req.GetPolicy()
	if in == nil {
		return nil, refuse(fault.Invalid, "policy", "Error in field 'policy' : Must be specified")
	}
	for _, p := range req.GetUpdateMask().GetPaths() {
		if !slices.Contains([]string{"bindings", "etag", "version", "audit_configs"}, p) {
			return nil, refuse(fault.Invalid, "update_mask", "Error in field 'update_mask' : Unknown field '%s'", p)
		}
	}
	if err := checkPolicy(in); err != nil {
		return nil, within("policy", -1, err)
	}
	key, err := a.policyKey(ctx, req.GetResource(), tables)
	if err != nil {
		return nil, err
	}
	for {
		old, version, err := a.policyAt(ctx, key)
		if err != nil {
			return nil, err
		}
		if e := in.GetEtag(); len(e) > 0 && !bytes.Equal(e, old.GetEtag()) {
			return nil, refuse(fault.Aborted, "policy.etag", "The policy was changed since it was read: %s", req.GetResource())
		}
		p := proto.Clone(in).(*iampb.Policy)
		if paths := req.GetUpdateMask().GetPaths(); len(paths) > 0 {
			p = proto.Clone(old).(*iampb.Policy)
			applyMask(p, in, req.GetUpdateMask(), maskRule{ignored: []string{"etag"}})
			if err := checkPolicy(p); err != nil {
				return nil, within("policy", -1, err)
			}
		}
		// An etag is never used twice, also not by a resource of the same name.
		p.Etag = make([]byte, 8)
		rand.Read(p.Etag)
		b, err := deterministic.Marshal(p)
		if err != nil {
			return nil, err
		}
		_, err = a.b.PutRecord(ctx, key, b, version)
		if fault.KindOf(err) == fault.Aborted && ctx.Err() == nil {
			continue
		}
		return p, err
	}
}

func checkPolicy(p *iampb.Policy) error {
	if v := p.GetVersion(); v != 0 && v != 1 && v != 3 {
		return refuse(fault.Invalid, "version", "Error in field 'version' : Must be 0, 1 or 3, but found %d", v)
	}
	for n, b := range p.GetBindings() {
		switch {
		case b.GetRole() == "":
			return within("bindings", n, refuse(fault.Invalid, "role", "Error in field 'role' : Must not be empty"))
		case b.GetCondition() != nil && p.GetVersion() != 3:
			return within("bindings", n, refuse(fault.Invalid, "condition", "Error in field 'condition' : Needs a policy of version 3"))
		}
	}
	return iam.CheckMembers(p)
}

func (a *Admin) testPermissions(ctx context.Context, req *iampb.TestIamPermissionsRequest, tables bool) (*iampb.TestIamPermissionsResponse, error) {
	for n, p := range req.GetPermissions() {
		if strings.Contains(p, "*") {
			return nil, within("permissions", n, refuse(fault.Invalid, "", "Permissions with wildcards are not allowed: '%s'", p))
		}
	}
	if _, err := a.policyKey(ctx, req.GetResource(), tables); err != nil {
		return nil, err
	}
	held, err := a.o.Permissions(ctx, req.GetResource(), req.GetPermissions())
	if err != nil {
		return nil, err
	}
	return &iampb.TestIamPermissionsResponse{Permissions: held}, nil
}

// recordsBelow returns the versions of the record root and of those below it, by key.
func (a *Admin) recordsBelow(ctx context.Context, root string) (map[string]uint64, error) {
	versions := map[string]uint64{}
	err := a.b.ListRecords(ctx, root, func(key string, _ []byte, version uint64) error {
		if key == root || strings.HasPrefix(key, root+"/") {
			versions[key] = version
		}
		return nil
	})
	return versions, err
}

// dropRecords deletes records of recordsBelow.
func (a *Admin) dropRecords(ctx context.Context, versions map[string]uint64) error {
	for key, version := range versions {
		switch err := a.b.DeleteRecord(ctx, key, version); fault.KindOf(err) {
		case 0:
			if err != nil {
				return err
			}
		case fault.NotFound:
		default:
			return err
		}
	}
	return nil
}

// GetIamPolicy implements T28.
func (s *tableServer) GetIamPolicy(ctx context.Context, req *iampb.GetIamPolicyRequest) (*iampb.Policy, error) {
	return s.getPolicy(ctx, req, true)
}

// SetIamPolicy implements T29.
func (s *tableServer) SetIamPolicy(ctx context.Context, req *iampb.SetIamPolicyRequest) (*iampb.Policy, error) {
	return s.setPolicy(ctx, req, true)
}

// TestIamPermissions implements T30.
func (s *tableServer) TestIamPermissions(ctx context.Context, req *iampb.TestIamPermissionsRequest) (*iampb.TestIamPermissionsResponse, error) {
	return s.testPermissions(ctx, req, true)
}

// GetIamPolicy implements I21.
func (s *instanceServer) GetIamPolicy(ctx context.Context, req *iampb.GetIamPolicyRequest) (*iampb.Policy, error) {
	return s.getPolicy(ctx, req, false)
}

// SetIamPolicy implements I22.
func (s *instanceServer) SetIamPolicy(ctx context.Context, req *iampb.SetIamPolicyRequest) (*iampb.Policy, error) {
	return s.setPolicy(ctx, req, false)
}

// TestIamPermissions implements I23.
func (s *instanceServer) TestIamPermissions(ctx context.Context, req *iampb.TestIamPermissionsRequest) (*iampb.TestIamPermissionsResponse, error) {
	return s.testPermissions(ctx, req, false)
}
