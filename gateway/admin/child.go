package admin

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// A collection is a kind of resource below tables. Each resource is a record,
//
//	<prefix><table>#<table id>/<id>
//
// so that a table created later under the same name begins without any, and an
// undeleted one has its own.
type collection[M childMessage] struct {
	form   form
	prefix string
	new    func() M
}

type childMessage interface {
	proto.Message
	GetName() string
	GetEtag() string
}

// A child is a resource of a collection.
type child[M childMessage] struct {
	pb M
	// incarnation tells it from those of the same name before and after it.
	incarnation string
	key         string
	version     uint64
}

// storedChild is the record of a child.
type storedChild struct {
	Resource    []byte `json:"resource"` // protobuf
	Incarnation string `json:"incarnation"`
}

// maxChildID bounds the ids of children. Production gives none; clients' own
// tests make ids of 49.
const maxChildID = schema.MaxTableID

// randomText returns something that is never used twice, such as an etag.
func randomText() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// prefixOf begins the records of a table.
func (c *collection[M]) prefixOf(t *schema.Table) string {
	return fmt.Sprintf("%s%s#%d/", c.prefix, t.Name, t.ID)
}

func (c *collection[M]) decode(key string, b []byte, version uint64) (*child[M], error) {
	var s storedChild
	ch := &child[M]{pb: c.new(), key: key, version: version}
	err := json.Unmarshal(b, &s)
	if err == nil {
		err = proto.Unmarshal(s.Resource, ch.pb)
	}
	if err != nil {
		return nil, fault.New(fault.Corruption, "read record of %s: %w", strings.ToLower(c.form.kind), err)
	}
	ch.incarnation = s.Incarnation
	return ch, nil
}

// at returns the resource called name, which came in field, and its table.
func (c *collection[M]) at(ctx context.Context, a *Admin, field, name string) (*child[M], *schema.Table, error) {
	ids, err := a.parse(field, c.form, name)
	if err != nil {
		return nil, nil, err
	}
	table := parent(ids, c.form, 3)
	t, err := a.b.Table(ctx, table)
	if err != nil {
		return nil, nil, orMissing(err, field, "Table", table)
	}
	key := c.prefixOf(t) + ids[3]
	b, version, err := a.b.GetRecord(ctx, key)
	if err != nil {
		return nil, nil, orMissing(err, field, c.form.kind, name)
	}
	ch, err := c.decode(key, b, version)
	return ch, t, err
}

// list returns the resources of a table, sorted by name.
func (c *collection[M]) list(ctx context.Context, a *Admin, t *schema.Table) ([]*child[M], error) {
	return c.below(ctx, a, c.prefixOf(t))
}

// below returns the resources whose records begin with prefix.
func (c *collection[M]) below(ctx context.Context, a *Admin, prefix string) ([]*child[M], error) {
	var out []*child[M]
	err := a.b.ListRecords(ctx, prefix, func(key string, b []byte, version uint64) error {
		ch, err := c.decode(key, b, version)
		out = append(out, ch)
		return err
	})
	return out, err
}

// put stores ch if its record was not changed since it was read. A new one is
// AlreadyExists if its name is taken.
func (c *collection[M]) put(ctx context.Context, a *Admin, field string, ch *child[M]) error {
	b, err := deterministic.Marshal(ch.pb)
	if err != nil {
		return err
	}
	b, err = json.Marshal(storedChild{Resource: b, Incarnation: ch.incarnation})
	if err != nil {
		return err
	}
	_, err = a.b.PutRecord(ctx, ch.key, b, ch.version)
	if ch.version == 0 && fault.KindOf(err) == fault.Aborted {
		return alreadyThere(field, c.form.kind, ch.pb.GetName())
	}
	return err
}

// change applies apply to a resource and stores it, again and again until no
// other change comes in between. An error of apply is returned as it is.
func (c *collection[M]) change(ctx context.Context, a *Admin, field, name string, apply func(M, *schema.Table) error) (M, error) {
	for {
		ch, t, err := c.at(ctx, a, field, name)
		if err == nil {
			err = apply(ch.pb, t)
		}
		if err != nil {
			var none M
			return none, err
		}
		err = c.put(ctx, a, field, ch)
		if fault.KindOf(err) == fault.Aborted && ctx.Err() == nil {
			continue
		}
		return ch.pb, err
	}
}

// remove deletes a resource that check, called with it, does not refuse, and its
// policy.
func (c *collection[M]) remove(ctx context.Context, a *Admin, field, name, etag string, check func(M) error) error {
	for {
		ch, t, err := c.at(ctx, a, field, name)
		if err != nil {
			return err
		}
		if err := c.checkETag("etag", etag, ch.pb); err != nil {
			return err
		}
		if err := check(ch.pb); err != nil {
			return err
		}
		switch err := a.b.DeleteRecord(ctx, ch.key, ch.version); fault.KindOf(err) {
		case fault.Aborted:
			if ctx.Err() == nil {
				continue
			}
			return err
		case fault.NotFound:
			return orMissing(err, field, c.form.kind, name)
		default:
			if err != nil {
				return err
			}
		}
		// No request finds the policy any more. If this fails it goes with the instance.
		key := policyOfChild(t, ch.pb.GetName(), ch.incarnation)
		if _, version, err := a.b.GetRecord(ctx, key); err == nil {
			_ = a.b.DeleteRecord(ctx, key, version)
		}
		return nil
	}
}

// checkETag refuses an etag that is given and not the resource's.
func (c *collection[M]) checkETag(field, etag string, pb M) error {
	if etag != "" && etag != pb.GetEtag() {
		return refuse(fault.Aborted, field, "%s was changed since it was read: %s", c.form.kind, pb.GetName())
	}
	return nil
}

// policyKey returns the record of a resource's policy.
func (c *collection[M]) policyKey(ctx context.Context, a *Admin, field, name string) (string, error) {
	ch, t, err := c.at(ctx, a, field, name)
	if err != nil {
		return "", err
	}
	return policyOfChild(t, name, ch.incarnation), nil
}

// policyOfChild is the record of the policy of what is called name below t.
func policyOfChild(t *schema.Table, name, incarnation string) string {
	return fmt.Sprintf("%s%s#%d%s#%s", policyPrefix, t.Name, t.ID, strings.TrimPrefix(name, t.Name), incarnation)
}
