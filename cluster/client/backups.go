package client

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// maxPause is how long a backup may hold up the writes of its table at most, each
// time that it tries.
const maxPause = time.Second

// leastCuts is how often a backup is tried at least, if its tablets keep changing. An attempt
// may take longer than maxServingWait for flushes alone.
const leastCuts = 5

// backup returns a backup by name.
func (c *Client) backup(ctx context.Context, name string) (*catalog.Backup, error) {
	b, err := catalog.ReadBackup(ctx, c.o.Lock, name)
	if err == nil && (b == nil || !b.Made || b.Expired(c.o.Now())) {
		err = fault.New(fault.NotFound, "Backup not found: %s", name)
	}
	return b, err
}

// reserveName takes the name of a backup that is going to be made. An expired one
// gives way, and so does one whose maker has said nothing for a while.
func (c *Client) reserveName(ctx context.Context, want *schema.Backup) (*catalog.Backup, error) {
	newID, err := c.newIDs(ctx)
	if err != nil {
		return nil, err
	}
	for {
		old, err := catalog.ReadBackup(ctx, c.o.Lock, want.Name)
		if err != nil {
			return nil, err
		}
		b := &catalog.Backup{Backup: want.Clone(), Renewed: time.Now()}
		b.ID, b.Table = newID(), new(schema.Table)
		switch {
		case old == nil:
		case old.Made && old.Expired(c.o.Now()):
			if err := c.deleteBackup(ctx, old); err != nil && !errors.Is(err, fault.Aborted) {
				return nil, err
			}
			continue
		case old.Made || time.Since(old.Renewed) < catalog.ReservationTTL:
			return nil, fault.New(fault.AlreadyExists, "Backup already exists: %s", want.Name)
		default:
			b.Version = old.Version
		}
		err = b.Write(ctx, c.o.Lock)
		if err == nil || !errors.Is(err, fault.Aborted) {
			return b, err
		}
	}
}

// renewReservation says that b is still being made.
func (c *Client) renewReservation(ctx context.Context, b *catalog.Backup) error {
	if time.Since(b.Renewed) < catalog.ReservationTTL/4 {
		return nil
	}
	b.Renewed = time.Now()
	return reservationError(b, b.Write(ctx, c.o.Lock))
}

// reservationError explains why the item of a backup cannot be written.
func reservationError(b *catalog.Backup, err error) error {
	if errors.Is(err, fault.Aborted) {
		return fault.New(fault.AlreadyExists, "Backup already exists: %s: it was made by somebody else meanwhile", b.Name)
	}
	return err
}

// storeBackup stores the rows of a backup whose name is reserved, and then says that
// it is made.
func (c *Client) storeBackup(ctx context.Context, b *catalog.Backup, rows []*metadata.Row) error {
	for part := range slices.Chunk(rows, 512) {
		if err := c.renewReservation(ctx, b); err != nil {
			return err
		}
		if err := c.addRows(ctx, part); err != nil {
			return err
		}
	}
	b.Made = true
	return reservationError(b, b.Write(ctx, c.o.Lock))
}

// abandonBackup forgets a backup that was not made. The master later deletes what this
// leaves.
func (c *Client) abandonBackup(ctx context.Context, b *catalog.Backup) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if c.o.Lock.Delete(ctx, catalog.BackupsPrefix+b.Name, b.Version) == nil {
		_ = c.dropRows(ctx, catalog.BackupTable(b.ID))
	}
}

// CreateBackup implements backend.Backups. It takes three flushes of the table's memtables,
// of which the later ones have only what came during the one before. Between the last two,
// writes pause for about one round trip to the table's servers. Then it writes a durable METADATA
// row for each tablet.
func (c *Client) CreateBackup(ctx context.Context, name string, want *schema.Backup) (*schema.Backup, error) {
	start := c.o.Now()
	if _, err := c.o.Schemas.Named(ctx, name); err != nil {
		return nil, err
	}
	b, err := c.reserveName(ctx, want)
	if err != nil {
		return nil, err
	}
	b.CreateTime, b.StartTime = start, start
	if err = c.fillBackup(ctx, b, name); err != nil {
		c.abandonBackup(ctx, b)
		return nil, err
	}
	return b.Backup, nil
}

func (c *Client) fillBackup(ctx context.Context, b *catalog.Backup, name string) error {
	var rows []*metadata.Row
	var sch *schema.Table
	// Flushes of many tablets take longer than a reservation lasts. If the name is lost
	// nonetheless, they come to their end, which does no harm.
	err := c.whileRenewing(ctx, b, func(context.Context) (err error) {
		rows, sch, err = c.consistentCut(ctx, name)
		return err
	})
	if err != nil {
		return err
	}
	b.Table, b.EndTime, b.Bytes = sch, c.o.Now(), 0
	seen := map[string]bool{}
	for _, r := range rows {
		r.Table = catalog.BackupTable(b.ID)
		for _, f := range r.Files {
			if !seen[f.Object] {
				seen[f.Object] = true
				b.Bytes += f.Size
			}
		}
	}
	return c.storeBackup(ctx, b, rows)
}

// consistentCut returns what all tablets of a table held at one instant, and the schema
// that the table had. When tablets are split, merged or moved meanwhile, or
// pauses do not overlap, it begins again: for maxServingWait, and leastCuts times at least.
func (c *Client) consistentCut(ctx context.Context, name string) ([]*metadata.Row, *schema.Table, error) {
	end := time.Now().Add(maxServingWait)
	for attempt := 0; ; attempt++ {
		rows, sch, err := c.tryCut(ctx, name)
		switch {
		case err == nil:
			return rows, sch, nil
		case ctx.Err() != nil:
			return nil, nil, context.Cause(ctx)
		case !errors.Is(err, fault.Unavailable) && !errors.Is(err, fault.Aborted):
			return nil, nil, err
		case attempt+1 >= leastCuts && time.Now().After(end):
			return nil, nil, fault.New(fault.Unavailable, "the tablets of %s could not be paused together: %w", name, err)
		}
		if err := c.backoff(ctx, attempt); err != nil {
			return nil, nil, err
		}
	}
}

func (c *Client) tryCut(ctx context.Context, name string) ([]*metadata.Row, *schema.Table, error) {
	n, version, err := catalog.ReadName(ctx, c.o.Lock, name)
	if err != nil {
		return nil, nil, err
	}
	sch := n.Live()
	if sch == nil {
		return nil, nil, fault.New(fault.NotFound, "Table not found: %s", name)
	}
	if sch.View != nil {
		return nil, nil, fault.New(fault.FailedPrecondition, "%s is a materialized view, of which there are no backups: make one of table %s", name, sch.View.Source)
	}
	if sch.Stream != nil {
		// What is not in the backup is among the changes: see RestoreTableAt.
		if err := c.waitApplied(ctx, version); err != nil {
			return nil, nil, err
		}
	}
	servers := map[string][]metadata.TabletID{}
	err = c.tabletRows(ctx, sch.ID, row.All, func(r *metadata.Row) error {
		a := r.Assignment
		if a == nil || a.State != metadata.Open {
			return fault.New(fault.Unavailable, "tablet %v is not served at the moment", r.Tablet)
		}
		servers[a.Addr] = append(servers[a.Addr], r.Tablet)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	each := func(do func(addr string, tablets []metadata.TabletID) error) error {
		var mu sync.Mutex
		var errs []error
		var doing sync.WaitGroup
		for addr, tablets := range servers {
			doing.Go(func() {
				if err := do(addr, tablets); err != nil {
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, err)
				}
			})
		}
		doing.Wait()
		return errors.Join(errs...)
	}
	// The bulk of it before anything waits, and then what came meanwhile. What comes during
	// that is flushed after the cut, when writes go on: pauses that wait for flushes would not
	// overlap.
	for range 2 {
		if err := each(func(addr string, tablets []metadata.TabletID) error { return c.o.Dialer.Dial(addr).Flush(ctx, tablets) }); err != nil {
			return nil, nil, err
		}
	}
	number := rand.Uint64()
	err = each(func(addr string, tablets []metadata.TabletID) error {
		return c.o.Dialer.Dial(addr).Pause(ctx, number, tablets, maxPause)
	})
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxPause)
		defer cancel()
		// A pause that is not ended is over after maxPause.
		_ = each(func(addr string, _ []metadata.TabletID) error { return c.o.Dialer.Dial(addr).Resume(ctx, number) })
		return nil, nil, err
	}
	// All are paused, unless one of the cuts finds that its pause is over.
	var mu sync.Mutex
	var rows []*metadata.Row
	err = each(func(addr string, _ []metadata.TabletID) error {
		some, err := c.o.Dialer.Dial(addr).Cut(ctx, number)
		mu.Lock()
		defer mu.Unlock()
		rows = append(rows, some...)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	slices.SortFunc(rows, func(a, b *metadata.Row) int { return bytes.Compare(a.Start, b.Start) })
	if !metadata.Tile(rows) {
		return nil, nil, fault.New(fault.Unavailable, "the tablets of %s are changing", name)
	}
	now, err := c.liveSchema(ctx, name)
	if err == nil && (now.ID != sch.ID || now.Version != sch.Version) {
		err = fault.New(fault.Unavailable, "the schema of %s is changing", name)
	}
	return rows, sch, err
}

// liveSchema returns the schema of a table as the lock service has it now.
func (c *Client) liveSchema(ctx context.Context, name string) (*schema.Table, error) {
	n, _, err := catalog.ReadName(ctx, c.o.Lock, name)
	if err != nil {
		return nil, err
	}
	if t := n.Live(); t != nil {
		return t, nil
	}
	return nil, fault.New(fault.NotFound, "Table not found: %s", name)
}

// backupRows returns the METADATA rows of a backup.
func (c *Client) backupRows(ctx context.Context, b *catalog.Backup) ([]*metadata.Row, error) {
	var rows []*metadata.Row
	err := c.tabletRows(ctx, catalog.BackupTable(b.ID), row.All, func(r *metadata.Row) error {
		rows = append(rows, r)
		return nil
	})
	if errors.Is(err, fault.NotFound) || err == nil && !metadata.Tile(rows) {
		// It was deleted, unless it is damaged.
		now, rerr := c.backup(ctx, b.Name)
		if rerr != nil {
			return nil, rerr
		}
		if now.ID != b.ID {
			return nil, fault.New(fault.NotFound, "Backup not found: %s", b.Name)
		}
		return nil, fault.New(fault.Corruption, "the METADATA rows of backup %s do not tile the key space", b.Name)
	}
	return rows, err
}

// CopyBackup implements backend.Backups.
func (c *Client) CopyBackup(ctx context.Context, source string, want *schema.Backup) (*schema.Backup, error) {
	if _, err := c.backup(ctx, source); err != nil {
		return nil, err
	}
	b, err := c.reserveName(ctx, want)
	if err != nil {
		return nil, err
	}
	err = func() error {
		// Read again: the reservation keeps the SSTables that it names from now on.
		from, err := c.backup(ctx, source)
		if err != nil {
			return err
		}
		rows, err := c.backupRows(ctx, from)
		if err != nil {
			return err
		}
		for _, r := range rows {
			r.Version, r.Table = 0, catalog.BackupTable(b.ID)
		}
		b.Table, b.CreateTime = from.Table, c.o.Now()
		b.StartTime, b.EndTime, b.Bytes = from.StartTime, from.EndTime, from.Bytes
		return c.storeBackup(ctx, b, rows)
	}()
	if err != nil {
		c.abandonBackup(ctx, b)
		return nil, err
	}
	return b.Backup, nil
}

// FrozenBackup returns a backup and the METADATA rows of its tablets, for a caller that
// copies it out of the store. Only the backup keeps the SSTables that they name.
func (c *Client) FrozenBackup(ctx context.Context, name string) (*schema.Backup, []*metadata.Row, error) {
	b, err := c.backup(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	rows, err := c.backupRows(ctx, b)
	for _, r := range rows {
		r.Version, r.Table = 0, 0 // both mean nothing outside this store
	}
	return b.Backup, rows, err
}

// ImportBackup makes the backup want of METADATA rows of a backup of another store. All
// ids are new. fetch has to store the SSTables, under new names by those in rows. It is
// called once the name of the backup is reserved, which keeps the sweeper from deleting
// anything until they are named.
func (c *Client) ImportBackup(ctx context.Context, want *schema.Backup, rows []*metadata.Row, fetch func(context.Context, map[string]string) error) (*schema.Backup, error) {
	b, err := c.reserveName(ctx, want)
	if err != nil {
		return nil, err
	}
	err = func() error {
		newID, err := c.newIDs(ctx)
		if err != nil {
			return err
		}
		ids, names := map[string]uint64{}, map[string]string{}
		own := make([]*metadata.Row, len(rows))
		for i, r := range rows {
			r = r.Clone()
			r.Version, r.Table, r.Tablet = 0, catalog.BackupTable(b.ID), metadata.TabletID(newID())
			for j := range r.Files {
				f := &r.Files[j]
				if ids[f.Object] == 0 {
					ids[f.Object] = newID()
					names[f.Object] = metadata.ObjectName(ids[f.Object])
				}
				f.ID, f.Object = ids[f.Object], names[f.Object]
			}
			own[i] = r
		}
		if err := c.whileRenewing(ctx, b, func(ctx context.Context) error { return fetch(ctx, names) }); err != nil {
			return err
		}
		b.Table = want.Table.Clone()
		b.Table.ID, b.CreateTime = newID(), c.o.Now()
		return c.storeBackup(ctx, b, own)
	}()
	if err != nil {
		c.abandonBackup(ctx, b)
		return nil, err
	}
	return b.Backup, nil
}

// whileRenewing calls do, and says meanwhile that b is still being made. A caller that
// loses the name has to stop.
func (c *Client) whileRenewing(ctx context.Context, b *catalog.Backup, do func(context.Context) error) error {
	during, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(catalog.ReservationTTL / 4)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				// Not with a context that ends with do: what became of a change must be known.
				if err := c.renewReservation(ctx, b); err != nil {
					cancel(err)
					return
				}
			case <-done:
				return
			}
		}
	}()
	err := do(during)
	close(done)
	<-stopped
	if err == nil {
		err = context.Cause(during)
	}
	return err
}

// Backup implements backend.Backups.
func (c *Client) Backup(ctx context.Context, name string) (*schema.Backup, error) {
	b, err := c.backup(ctx, name)
	if err != nil {
		return nil, err
	}
	return b.Backup, nil
}

// ListBackups implements backend.Backups.
func (c *Client) ListBackups(ctx context.Context, prefix string) ([]*schema.Backup, error) {
	all, err := catalog.Backups(ctx, c.o.Lock, prefix)
	if err != nil {
		return nil, err
	}
	now := c.o.Now()
	var out []*schema.Backup
	for _, b := range all {
		if b.Made && !b.Expired(now) {
			out = append(out, b.Backup)
		}
	}
	return out, nil
}

// UpdateBackup implements backend.Backups.
func (c *Client) UpdateBackup(ctx context.Context, name string, change func(*schema.Backup) error) (*schema.Backup, error) {
	for {
		old, err := c.backup(ctx, name)
		if err != nil {
			return nil, err
		}
		b := *old
		b.Backup = old.Clone()
		if err := change(b.Backup); err != nil {
			return nil, err
		}
		b.Name, b.ID, b.Table = old.Name, old.ID, old.Table
		if err = b.Write(ctx, c.o.Lock); err == nil {
			return b.Backup, nil
		} else if !errors.Is(err, fault.Aborted) {
			return nil, err
		}
	}
}

// DeleteBackup implements backend.Backups.
func (c *Client) DeleteBackup(ctx context.Context, name string) error {
	for {
		b, err := c.backup(ctx, name)
		if err != nil {
			return err
		}
		if err := c.deleteBackup(ctx, b); !errors.Is(err, fault.Aborted) {
			return err
		}
	}
}

// deleteBackup deletes b as it is. From the moment that its item is gone its
// rows are garbage, which the master sees to if this does not.
func (c *Client) deleteBackup(ctx context.Context, b *catalog.Backup) error {
	if err := c.deleteItem(ctx, catalog.BackupsPrefix+b.Name, b.Version); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = c.dropRows(ctx, catalog.BackupTable(b.ID))
	return nil
}

// deleteItem is Delete of the lock service, asked for again while it is not
// known what became of it.
func (c *Client) deleteItem(ctx context.Context, key string, version int64) error {
	unsure := false
	for attempt := 0; ; attempt++ {
		err := c.o.Lock.Delete(ctx, key, version)
		if unsure && (errors.Is(err, fault.Aborted) || errors.Is(err, fault.NotFound)) {
			if _, gerr := c.o.Lock.Get(ctx, key); errors.Is(gerr, fault.NotFound) {
				return nil // by this call: the item's version is this caller's
			}
		}
		if err == nil || !errors.Is(err, fault.Unavailable) || errors.Is(err, lock.ErrEnded) {
			return err
		}
		unsure = true
		if err := c.backoff(ctx, attempt); err != nil {
			return err
		}
	}
}

// RestoreTable implements backend.Backups. It takes a durable METADATA row for
// each tablet; the SSTables are shared until compactions replace them.
func (c *Client) RestoreTable(ctx context.Context, from, name string, change func(*schema.Table) error) (*schema.Table, error) {
	b, err := c.backup(ctx, from)
	if err != nil {
		return nil, err
	}
	newID, err := c.newIDs(ctx)
	if err != nil {
		return nil, err
	}
	sch := b.Table.Clone()
	sch.ForgetViews()
	if err := change(sch); err != nil {
		return nil, err
	}
	sch.Name, sch.ID, sch.CreateTime, sch.DeleteTime = name, newID(), c.o.Now(), time.Time{}
	// Versions go on from those in the SSTables.
	sch.NextFamily, sch.Version = b.Table.NextFamily, b.Table.Version+1
	if err := sch.CheckRestored(b.Table); err != nil {
		return nil, err
	}
	sch.NoteRules(b.Table)
	return c.restoreRows(ctx, b, sch, newID)
}

// restoreRows makes the table sch of what the backup b holds.
func (c *Client) restoreRows(ctx context.Context, b *catalog.Backup, sch *schema.Table, newID func() uint64) (*schema.Table, error) {
	return c.makeTable(ctx, sch, func() ([]*metadata.Row, error) {
		// Read again: the SSTables that it names are kept from now on.
		now, err := c.backup(ctx, b.Name)
		if err != nil {
			return nil, err
		}
		if now.ID != b.ID {
			return nil, fault.New(fault.NotFound, "Backup not found: %s", b.Name)
		}
		rows, err := c.backupRows(ctx, b)
		for _, r := range rows {
			r.Version, r.Table, r.Tablet = 0, sch.ID, metadata.TabletID(newID())
			r.Assignment = &metadata.Assignment{}
		}
		return rows, err
	})
}
