package catalog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
)

// A Copy is the content of the lock service at one moment, kept in the store. Copies are
// numbered, and an item of the lock service has the number of the newest. If the store has
// a newer one, the lock service was put back to an earlier state, or emptied, and must not
// be believed. The number is written down in the lock service first, so the store is never
// ahead of a lock service that was not put back.
//
// A copy has no secrets: the store is read by more than may have them, and is
// backed up. After a recovery they are made anew.
type Copy struct {
	Number uint64
	// Taken is when, by the clock of the master.
	Taken time.Time
	// Revision is that of the lock service.
	Revision int64
	// Items are all that do not go with a session, by key, but for secrets.
	Items map[string][]byte
	// newerDamaged says that there is a newer copy, which is damaged.
	newerDamaged bool
}

const (
	copyKey = "copy"
	// EpochsKey is the item of a number that is added to the creation revision of the
	// master's item to make its epoch. A recreated lock service counts from the beginning,
	// and epochs may not.
	EpochsKey = "epochs"
	// MasterKey is the item of the master.
	MasterKey = "master"
	// RecordsPrefix is where the lock service has the gateway's records.
	RecordsPrefix = "records/"
	// SecretsPrefix is where it has the records that authenticate what clients carry. With
	// one, a token of any client can be forged.
	SecretsPrefix = RecordsPrefix + "secrets/"
	// copiesKept is how many copies are left in the store.
	copiesKept = 8
)

// inCopies tells whether copies have an item: not if it goes with a session, numbers the copies,
// or is secret.
func inCopies(key string, value []byte) bool {
	return key != copyKey && ClassOf(key) != EphemeralItem && !(strings.HasPrefix(key, DrainingPrefix) && len(value) == 0) && !strings.HasPrefix(key, SecretsPrefix)
}

// copyName names copies so that they are listed in their order.
func copyName(n uint64) string { return fmt.Sprintf("%016x", n) }

func parseCopyName(name string) (n uint64, err error) {
	if _, err := fmt.Sscanf(name, "%x", &n); err != nil || copyName(n) != name {
		return 0, fault.New(fault.Corruption, "object %s is no copy of the lock service", name)
	}
	return n, nil
}

// A Copier puts copies of the lock service into the store.
type Copier struct {
	Lock lock.Service
	// Store keeps nothing else.
	Store objectstore.Store
	last  uint32 // checksum of the items of the last copy
	// clean says that no copy in the store has a secret.
	clean bool
	// covered is a time of this process's clock. What the lock service held then is in a
	// copy in the store, except for what goes with sessions.
	covered atomic.Pointer[time.Time]
}

// Covers tells whether the store has a copy of the lock service as of a time, or later. It
// is safe for concurrent use.
func (c *Copier) Covers(at time.Time) bool {
	covered := c.covered.Load()
	return covered != nil && covered.After(at)
}

// copyNumber returns the lock service's number of its newest copy, and the version of its
// item.
func copyNumber(ctx context.Context, l lock.Service) (n uint64, item int64, err error) {
	i, err := l.Get(ctx, copyKey)
	if errors.Is(err, fault.NotFound) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	n, err = numberOf(i)
	return n, i.Version, err
}

// numberOf returns the number that copyKey's item holds, 0 if there is none.
func numberOf(i lock.Item) (n uint64, err error) {
	if i.Version == 0 {
		return 0, nil
	}
	if err := json.Unmarshal(i.Value, &n); err != nil {
		return 0, fault.New(fault.Corruption, "item %s: %w", copyKey, err)
	}
	return n, nil
}

func (c *Copier) names(ctx context.Context) ([]string, error) {
	infos, err := c.Store.List(ctx, "", "", 0)
	if err != nil {
		return nil, fmt.Errorf("list the copies of the lock service: %w", err)
	}
	var names []string
	for _, i := range infos {
		names = append(names, i.Name)
	}
	return names, nil
}

// Check returns fault.FailedPrecondition if the store is ahead of the lock
// service.
func (c *Copier) Check(ctx context.Context) error {
	// The store first: the lock service is ahead of it or level.
	names, err := c.names(ctx)
	if err != nil || len(names) == 0 {
		return err
	}
	newest, err := parseCopyName(names[len(names)-1])
	if err != nil {
		return err
	}
	n, _, err := copyNumber(ctx, c.Lock)
	if err == nil && n < newest {
		err = rolledBackError(n, newest)
	}
	return err
}

func rolledBackError(n, newest uint64) error {
	return fault.New(fault.FailedPrecondition, "the lock service (etcd) is older than the store: it knows of %d copies of itself, there is copy %d. "+
		"It was restored from a snapshot, or emptied. Nothing is served and nothing deleted, so that nothing is lost: "+
		"stop all processes and run `trestle cluster recover`, which says first what it would do", n, newest)
}

// NewCopy returns a copy of a lock service that is in no store.
func NewCopy(ctx context.Context, l lock.Service) (*Copy, error) {
	cp, _, err := newCopy(ctx, l)
	return cp, err
}

// newCopy returns a copy without a number, and the item of the last one's.
func newCopy(ctx context.Context, l lock.Service) (*Copy, lock.Item, error) {
	items, revision, err := l.List(ctx, "")
	if err != nil {
		return nil, lock.Item{}, err
	}
	cp := &Copy{Revision: revision, Items: map[string][]byte{}}
	var number lock.Item
	for _, i := range items {
		if i.Key == copyKey {
			number = i
		}
		if inCopies(i.Key, i.Value) {
			cp.Items[i.Key] = i.Value
		}
	}
	return cp, number, nil
}

// Take puts a copy into the store if anything has changed since the last one. It
// returns fault.FailedPrecondition if the store is ahead of the lock service.
func (c *Copier) Take(ctx context.Context, now time.Time) error {
	begun := time.Now()
	cp, number, err := newCopy(ctx, c.Lock)
	if err != nil {
		return err
	}
	cp.Taken = now
	b, err := json.Marshal(cp.Items)
	if err != nil {
		return err
	}
	sum := crc32.ChecksumIEEE(b)
	if sum == c.last {
		c.covered.Store(&begun)
		return nil
	}
	if err := c.Check(ctx); err != nil {
		return err
	}
	// The number is one more than that of the copy listed with these items. A copy that
	// another master made in between is newer, and this one is given up.
	n, err := numberOf(number)
	if err != nil {
		return err
	}
	cp.Number = n + 1
	value, err := json.Marshal(cp.Number)
	if err != nil {
		return err
	}
	if _, err = c.Lock.Put(ctx, copyKey, value, number.Version); err != nil {
		return fmt.Errorf("number a copy of the lock service: %w", err)
	}
	err = c.Store.PutIfAbsent(ctx, copyName(cp.Number), cp.marshal())
	if errors.Is(err, fault.AlreadyExists) {
		return rolledBackError(n, cp.Number)
	}
	if err != nil {
		return fmt.Errorf("store a copy of the lock service: %w", err)
	}
	c.covered.Store(&begun)
	names, err := c.names(ctx)
	if err == nil && !c.clean {
		names, err = c.revokeSecrets(ctx, names)
	}
	if err != nil {
		return err
	}
	c.last = sum
	for i := 0; err == nil && i < len(names)-copiesKept; i++ {
		err = c.Store.Delete(ctx, names[i])
	}
	return err
}

// revokeSecrets deletes, of copies by name of which the last has just been taken, those in
// which earlier versions left secrets, and returns the others. The secrets end first: a
// process that has read them may have kept them.
func (c *Copier) revokeSecrets(ctx context.Context, names []string) ([]string, error) {
	var left, withSecrets []string
	for i, name := range names {
		if i == len(names)-1 {
			left = append(left, name)
			break
		}
		b, err := c.Store.Get(ctx, name)
		if err != nil && !errors.Is(err, fault.NotFound) {
			return nil, fmt.Errorf("look for secrets in copy %s of the lock service: %w", name, err)
		}
		// Not decoded, as a damaged one tells them too.
		if bytes.Contains(b, []byte(SecretsPrefix)) {
			withSecrets = append(withSecrets, name)
		} else {
			left = append(left, name)
		}
	}
	if len(withSecrets) > 0 {
		items, _, err := c.Lock.List(ctx, SecretsPrefix)
		if err != nil {
			return nil, err
		}
		for _, i := range items {
			if err := c.Lock.Delete(ctx, i.Key, i.Version); err != nil {
				return nil, fmt.Errorf("end the secret %s: %w", i.Key, err)
			}
		}
	}
	for _, name := range withSecrets {
		if err := c.Store.Delete(ctx, name); err != nil {
			return nil, fmt.Errorf("delete copy %s of the lock service: %w", name, err)
		}
	}
	c.clean = true
	return left, nil
}

// marshal encodes a copy: a CRC-32C of the rest, then JSON.
func (cp *Copy) marshal() []byte { return metadata.EncodeChecked(cp) }

func unmarshalCopy(b []byte) (*Copy, error) {
	c := new(Copy)
	if err := metadata.DecodeChecked(b, "a copy of the lock service", c); err != nil {
		return nil, err
	}
	// Earlier versions copied more.
	maps.DeleteFunc(c.Items, func(key string, value []byte) bool { return !inCopies(key, value) })
	return c, nil
}

// Newest returns the newest copy in the store that is sound, NotFound if there is
// none.
func (c *Copier) Newest(ctx context.Context) (*Copy, error) {
	names, err := c.names(ctx)
	if err != nil {
		return nil, err
	}
	for i, name := range slices.Backward(names) {
		b, err := c.Store.Get(ctx, name)
		if err != nil {
			return nil, err
		}
		cp, err := unmarshalCopy(b)
		if errors.Is(err, fault.Corruption) {
			continue
		}
		if err == nil {
			cp.newerDamaged = i < len(names)-1
		}
		return cp, err
	}
	return nil, fault.New(fault.NotFound, "the store has no copy of the lock service")
}

// Restore makes the lock service hold the items of a copy, as amended, and nothing else
// but what goes with sessions: no secret either. An interrupted Restore can be repeated.
func (c *Copier) Restore(ctx context.Context, cp *Copy) error {
	names, err := c.names(ctx)
	if err != nil {
		return err
	}
	newest := cp.Number
	for _, name := range names {
		n, err := parseCopyName(name)
		if err != nil {
			return err
		}
		newest = max(newest, n)
	}
	items, _, err := c.Lock.List(ctx, "")
	if err != nil {
		return err
	}
	have := map[string]lock.Item{}
	for _, i := range items {
		have[i.Key] = i
		if _, ok := cp.Items[i.Key]; !ok && !i.Held && i.Key != copyKey {
			if err := c.Lock.Delete(ctx, i.Key, i.Version); err != nil {
				return fmt.Errorf("delete item %s: %w", i.Key, err)
			}
		}
	}
	for key, value := range cp.Items {
		i := have[key]
		if i.Version > 0 && string(i.Value) == string(value) {
			continue
		}
		if _, err := c.Lock.Put(ctx, key, value, i.Version); err != nil {
			return fmt.Errorf("restore item %s: %w", key, err)
		}
	}
	// A copy that was on its way when everything ended may yet arrive.
	value, err := json.Marshal(newest + skippedCopies)
	if err != nil {
		return err
	}
	// Last: until then no process starts.
	if _, err := c.Lock.Put(ctx, copyKey, value, have[copyKey].Version); err != nil {
		return fmt.Errorf("note the number of the newest copy: %w", err)
	}
	return nil
}

// Epochs returns what EpochsKey holds, 0 if there is no such item.
func Epochs(ctx context.Context, l lock.Service) (n int64, err error) {
	i, err := l.Get(ctx, EpochsKey)
	if errors.Is(err, fault.NotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if err := json.Unmarshal(i.Value, &n); err != nil {
		return 0, fault.New(fault.Corruption, "item %s: %w", EpochsKey, err)
	}
	return n, nil
}
