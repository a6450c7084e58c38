package catalog

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// A DamagedLog is a commit log of which something is damaged that tablets wait
// for: they are not served without it.
type DamagedLog struct {
	Log commitlog.ID `json:"-"`
	// Server is the name of the log's owner, empty if it is not known.
	Server  string
	Tablets []WaitingTablet
	// More says that there are others that wait, too many to name them all. Tablets has at
	// least one for each segment that is waited for.
	More    bool `json:",omitempty"`
	version int64
}

// mostWaiting bounds the names of the tablets that wait for a log, in bytes: every process
// reads them again and again, and etcd takes no more than 1.5 MiB. The first tablets of
// segments that are not named yet may take as much again.
const mostWaiting = 256 << 10

// A WaitingTablet is a tablet that was to be opened.
type WaitingTablet struct {
	Table      string // full name
	Tablet     metadata.TabletID
	Start, End []byte
	// Object is the first of the segments that it waits for, Error the damage found there.
	Object, Error string
	// Since is when that was found.
	Since time.Time
}

// Name returns the name that logs and errors give the tablet.
func (t WaitingTablet) Name() metadata.TabletName {
	return metadata.TabletName{Table: t.Table, Tablet: t.Tablet, Start: t.Start, End: t.End}
}

// size returns how many bytes of an item it takes, about.
func (t WaitingTablet) size() int {
	const others = 200 // names of fields, the number, the time
	return len(t.Table) + len(t.Object) + len(t.Error) + base64.StdEncoding.EncodedLen(len(t.Start)) + base64.StdEncoding.EncodedLen(len(t.End)) + others
}

// DamagedPrefix is where the lock service has the items of damaged logs. A server that
// tries to take tablets over writes them, so that every process can report them.
const DamagedPrefix = "damaged/"

func damagedKey(id commitlog.ID) string { return DamagedPrefix + id.String() }

func parseDamaged(i lock.Item) (d DamagedLog, err error) {
	var id uint64
	if _, err := fmt.Sscanf(strings.TrimPrefix(i.Key, DamagedPrefix), "%x", &id); err != nil || damagedKey(commitlog.ID(id)) != i.Key {
		return d, fault.New(fault.Corruption, "item %s is of no commit log", i.Key)
	}
	if err := json.Unmarshal(i.Value, &d); err != nil {
		return d, fault.New(fault.Corruption, "item %s: %w", i.Key, err)
	}
	d.Log, d.version = commitlog.ID(id), i.Version
	return d, nil
}

// DamagedLogs returns the logs that tablets wait for, in the order of their ids.
func DamagedLogs(ctx context.Context, l lock.Service) ([]DamagedLog, error) {
	items, _, err := l.List(ctx, DamagedPrefix)
	if err != nil {
		return nil, err
	}
	var out []DamagedLog
	for _, i := range items {
		d, err := parseDamaged(i)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

// NoteWaiting notes that tablets wait for a log. Those that it has no room for it notes when
// it is called again and others have been opened.
func NoteWaiting(ctx context.Context, l lock.Service, id commitlog.ID, tablets []WaitingTablet) error {
	return changeDamaged(ctx, l, id, func(d *DamagedLog) bool {
		changed, size := false, 0
		for _, t := range d.Tablets {
			size += t.size()
		}
		for _, t := range tablets {
			at := slices.IndexFunc(d.Tablets, func(x WaitingTablet) bool { return x.Tablet == t.Tablet })
			switch {
			case at < 0 && !d.hasRoom(size, t):
				if d.More {
					continue
				}
				d.More = true
			case at < 0:
				d.Tablets = append(d.Tablets, t)
				size += t.size()
			case d.Tablets[at].Object == t.Object && d.Tablets[at].Error == t.Error:
				continue
			default:
				d.Tablets[at] = t
			}
			changed = true
		}
		if changed && d.Server == "" {
			if state, _, err := ReadLog(ctx, l, id); err == nil {
				d.Server = state.Server
			}
		}
		return changed
	})
}

// hasRoom tells whether t can be added to tablets of a size.
func (d *DamagedLog) hasRoom(size int, t WaitingTablet) bool {
	size += t.size()
	return size <= mostWaiting || size <= 2*mostWaiting && !slices.ContainsFunc(d.Tablets, func(x WaitingTablet) bool { return x.Object == t.Object })
}

// NoteOpened removes tablets, or all if none is named, from those that wait for a log.
func NoteOpened(ctx context.Context, l lock.Service, id commitlog.ID, tablets ...metadata.TabletID) error {
	return changeDamaged(ctx, l, id, func(d *DamagedLog) bool {
		n := len(d.Tablets)
		d.Tablets = slices.DeleteFunc(d.Tablets, func(x WaitingTablet) bool { return len(tablets) == 0 || slices.Contains(tablets, x.Tablet) })
		if len(d.Tablets) == n {
			return false
		}
		d.More = false // those that still wait are noted again
		return true
	})
}

// changeDamaged changes the item of a damaged log if change returns true.
func changeDamaged(ctx context.Context, l lock.Service, id commitlog.ID, change func(*DamagedLog) bool) error {
	for {
		d := DamagedLog{Log: id}
		i, err := l.Get(ctx, damagedKey(id))
		if err == nil {
			d, err = parseDamaged(i)
		}
		if err != nil && !errors.Is(err, fault.NotFound) || !change(&d) {
			return ignoreMissing(err)
		}
		if len(d.Tablets) == 0 {
			err = ignoreMissing(l.Delete(ctx, damagedKey(id), d.version))
		} else {
			var value []byte
			if value, err = json.Marshal(d); err == nil {
				_, err = l.Put(ctx, damagedKey(id), value, d.version)
			}
		}
		if !errors.Is(err, fault.Aborted) {
			return err
		}
	}
}

func ignoreMissing(err error) error {
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	return err
}

// StillWaiting leaves of damaged logs the tablets whose rows say that they wait, and More where
// rows say that of others.
func StillWaiting(logs []DamagedLog, rows map[metadata.TabletID]*metadata.Row) (out []DamagedLog) {
	for _, d := range logs {
		d.Tablets = slices.DeleteFunc(slices.Clone(d.Tablets), func(t WaitingTablet) bool { return !WaitsFor(rows[t.Tablet], d.Log) })
		if d.More {
			waiting := 0
			for _, r := range rows {
				if WaitsFor(r, d.Log) {
					waiting++
				}
			}
			d.More = waiting > len(d.Tablets)
		}
		if len(d.Tablets) > 0 {
			out = append(out, d)
		}
	}
	return out
}

// WaitsFor tells whether a tablet's records in a log must be replayed before it is opened.
func WaitsFor(r *metadata.Row, log commitlog.ID) bool {
	return r != nil && r.Assignment != nil && commitlog.ID(r.Assignment.Log) == log && r.Assignment.State != metadata.Open
}
