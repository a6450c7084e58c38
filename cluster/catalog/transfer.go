package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/engine/fault"
)

// TransferKey is the item of a transfer. The tables that this lock service knows are
// copied to another one, with its own store, or were copied from one (package
// cluster/transfer).
const TransferKey = "transfer"

// The States of a Transfer.
const (
	// TransferUnderWay: the target is not complete.
	TransferUnderWay = "under way"
	// TransferComplete: the target has everything, and is served.
	TransferComplete = "complete"
	// TransferDone: the operator has given up the source for good.
	TransferDone = "done"
)

// A Transfer is the value of such an item. The source's and the target's have the
// same ID.
type Transfer struct {
	ID string
	// Source says that this is where the tables come from.
	Source bool
	State  string
	// Peer is the other side, and Command the command that transfers, as operators write
	// them.
	Peer, Command string
	Begun, Ended  time.Time `json:",omitzero"`
}

// ReadTransfer returns what TransferKey holds, the zero Transfer if there is no such
// item, and the item's version.
func ReadTransfer(ctx context.Context, l lock.Service) (t Transfer, version int64, err error) {
	i, err := l.Get(ctx, TransferKey)
	if errors.Is(err, fault.NotFound) {
		return t, 0, nil
	}
	if err != nil {
		return t, 0, err
	}
	if err := json.Unmarshal(i.Value, &t); err != nil {
		return t, 0, fault.New(fault.Corruption, "item %s: %w", TransferKey, err)
	}
	return t, i.Version, nil
}

// WriteTransfer stores the item of a transfer if its version is still version, and
// returns the next one.
func WriteTransfer(ctx context.Context, l lock.Service, t Transfer, version int64) (int64, error) {
	value, err := json.Marshal(t)
	if err != nil {
		return 0, err
	}
	return Put(ctx, l, TransferKey, value, version)
}

// CheckTransfer returns fault.FailedPrecondition if what a lock service knows must not be
// served. Half of it may be missing, or another place serves it.
func CheckTransfer(ctx context.Context, l lock.Service) error {
	t, _, err := ReadTransfer(ctx, l)
	if err != nil {
		return err
	}
	return t.Check()
}

// Check is CheckTransfer of an item that was read.
func (t Transfer) Check() error {
	switch {
	case t.ID == "" || !t.Source && t.State == TransferComplete:
		return nil
	case !t.Source:
		return fault.New(fault.FailedPrecondition, "it is being filled from %s since %s, and is not complete: run `%s` again, which goes on where it was interrupted",
			t.Peer, t.Begun.Format(time.RFC3339), t.Command)
	case t.State == TransferUnderWay:
		return fault.New(fault.FailedPrecondition, "it is being copied to %s since %s: what is written here now might not be in the copy. "+
			"Run `%s` again, which goes on where it was interrupted, or with --abandon, to serve it here as before", t.Peer, t.Begun.Format(time.RFC3339), t.Command)
	case t.State == TransferComplete:
		return fault.New(fault.FailedPrecondition, "it was copied to %s, complete at %s: what is written here is not there. "+
			"If this is the one to serve all the same, run `%s` with --abandon; with --done it is never served again", t.Peer, t.Ended.Format(time.RFC3339), t.Command)
	}
	return fault.New(fault.FailedPrecondition, "it was given to %s for good, complete at %s: serve that one. This one can be deleted", t.Peer, t.Ended.Format(time.RFC3339))
}

// HBasePrefix is where the lock service has an item for each process that serves
// HBase clients. It vanishes with the process's session.
const HBasePrefix = "hbase/"

// An ItemClass says what becomes of an item when tables are transferred.
type ItemClass int

// The Parts.
const (
	// UnknownItem items were made by another version of this program.
	UnknownItem ItemClass = iota
	// DurableItem items describe tables, and all that goes with them.
	DurableItem
	// EphemeralItem items vanish with the process that holds them.
	EphemeralItem
	// LocalItem items are about the processes of one place, their commit logs, and
	// copies of the lock service.
	LocalItem
)

// ClassOf returns the class of the item of a key. EpochsKey is LocalItem: epochs go by the
// versions of one lock service.
func ClassOf(key string) ItemClass {
	switch key {
	case FormatKey, IncarnationKey:
		return DurableItem
	case MasterKey:
		return EphemeralItem
	case EpochsKey, copyKey, TransferKey, PromisedKey:
		return LocalItem
	}
	for _, p := range []struct {
		prefix string
		part   ItemClass
	}{
		{TablesPrefix, DurableItem}, {BackupsPrefix, DurableItem}, {RecordsPrefix, DurableItem}, {metastore.RootPrefix, DurableItem},
		{ServersPrefix, EphemeralItem}, {AppliedPrefix, EphemeralItem}, {HBasePrefix, EphemeralItem},
		{LogsPrefix, LocalItem}, {DamagedPrefix, LocalItem}, {DrainingPrefix, LocalItem}, {PinsPrefix, LocalItem},
	} {
		if strings.HasPrefix(key, p.prefix) {
			return p.part
		}
	}
	return UnknownItem
}

// RaiseEpochs makes the epochs of masters of a lock service begin above a number.
func RaiseEpochs(ctx context.Context, l lock.Service, above int64) error {
	for {
		i, err := l.Get(ctx, EpochsKey)
		if err != nil && !errors.Is(err, fault.NotFound) {
			return err
		}
		n, err := Epochs(ctx, l)
		if err != nil || n >= above {
			return err
		}
		if _, err := Put(ctx, l, EpochsKey, fmt.Appendf(nil, "%d", above), i.Version); !errors.Is(err, fault.Aborted) {
			return err
		}
	}
}
