package auth

import (
	"bytes"
	"context"
	"crypto/rand"

	"cloud.google.com/go/iam/apiv1/iampb"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/backend"
)

const policyPrefix = "policies/"

// unsetETag is the etag of a policy that was never set.
var unsetETag = []byte{0x00, 0x20, 0x01}

// ProjectPolicies keeps the policies of projects in records. A project needs no
// creation: it is there when something is in it, or when it has a policy.
type ProjectPolicies struct{ Records backend.Records }

func checkProject(resource string) error {
	if isProject(resource) && projectID.MatchString(resource[len("projects/"):]) {
		return nil
	}
	return fault.InvalidField("resource", "When parsing '%s' : Project name expected in the form 'projects/<project_id>'; "+
		"policies of other resources are set through the Bigtable admin services.", shorten(resource))
}

func (s ProjectPolicies) read(ctx context.Context, resource string) (*iampb.Policy, uint64, error) {
	b, version, err := s.Records.GetRecord(ctx, policyPrefix+resource)
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

// Get returns the policy of a project; an empty one if none was set.
func (s ProjectPolicies) Get(ctx context.Context, resource string) (*iampb.Policy, error) {
	if err := checkProject(resource); err != nil {
		return nil, err
	}
	p, _, err := s.read(ctx, resource)
	return p, err
}

// Set replaces the policy of a project and returns it with its new etag.
// Aborted if policy has an etag and it is not that of the current policy.
func (s ProjectPolicies) Set(ctx context.Context, resource string, policy *iampb.Policy) (*iampb.Policy, error) {
	if err := checkProject(resource); err != nil {
		return nil, err
	}
	if policy == nil {
		return nil, fault.InvalidField("policy", "Error in field 'policy' : Must be specified")
	}
	if v := policy.GetVersion(); v != 0 && v != 1 && v != 3 {
		return nil, fault.InvalidField("policy.version", "Error in field 'version' : Must be 0, 1 or 3, but found %d", v)
	}
	for _, b := range policy.GetBindings() {
		if b.GetCondition() != nil && policy.GetVersion() != 3 {
			return nil, fault.InvalidField("policy.version", "Error in field 'version' : A policy with conditions must be of version 3")
		}
	}
	if err := checkPolicy(policy); err != nil {
		return nil, err
	}
	for {
		old, version, err := s.read(ctx, resource)
		if err != nil {
			return nil, err
		}
		if e := policy.GetEtag(); len(e) > 0 && !bytes.Equal(e, old.GetEtag()) {
			return nil, fault.New(fault.Aborted, "The policy was changed since it was read: %s", resource)
		}
		p := proto.Clone(policy).(*iampb.Policy)
		p.Etag = make([]byte, 8)
		rand.Read(p.Etag)
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
		if err != nil {
			return nil, err
		}
		_, err = s.Records.PutRecord(ctx, policyPrefix+resource, b, version)
		if fault.KindOf(err) == fault.Aborted && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return nil, err
		}
		return p, nil
	}
}
