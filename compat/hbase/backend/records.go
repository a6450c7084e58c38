package backend

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
)

// recordsTable is the table of records. Rows are keyed by what they are (below)
// and a name; the family has the value, its version, 8 bytes, and 8 random bytes of the call
// that wrote it.
var recordsTable = model.Name{Namespace: model.DefaultNamespace, Qualifier: "trestle.records"}

const (
	recordFamily  = "r"
	recordValue   = "v"
	recordVersion = "n"
	recordWriter  = "w"

	// The kinds of records.
	clientRecord  = "r" // of backend.Records
	deletedRecord = "d" // a table that can be undeleted
	backupRecord  = "b"
	lockRecord    = "l"
)

// openRecords makes the table of records if it is not there.
func (b *Backend) openRecords(ctx context.Context) error {
	r, err := ask[*pb.GetTableDescriptorsResponse](ctx, b, "GetTableDescriptors",
		&pb.GetTableDescriptorsRequest{TableNames: []*pb.TableName{recordsTable.Proto()}}, func() proto.Message { return new(pb.GetTableDescriptorsResponse) })
	if err == nil && len(r.GetTableSchema()) > 0 {
		return nil
	}
	if err != nil && !is(err, "TableNotFoundException") {
		return err
	}
	err = b.create(ctx, &pb.TableSchema{TableName: recordsTable.Proto(),
		ColumnFamilies: []*pb.ColumnFamilySchema{ownFamily(recordFamily, model.Forever)}}, nil)
	if errors.Is(err, fault.AlreadyExists) {
		return nil
	}
	return err
}

// record reads one record.
func (b *Backend) record(ctx context.Context, key string) (value []byte, version uint64, err error) {
	err = b.records(ctx, row.Single([]byte(key)), func(_ string, v []byte, n uint64) error {
		value, version = v, n
		return nil
	})
	if err == nil && version == 0 {
		err = fault.New(fault.NotFound, "Record not found: %s", key[1:])
	}
	return value, version, err
}

// records reads the records with keys in r.
func (b *Backend) records(ctx context.Context, r row.Range, emit func(key string, value []byte, version uint64) error) error {
	return b.takeRecords(ctx, r, &recordTaker{emit: emit})
}

func (b *Backend) takeRecords(ctx context.Context, r row.Range, t *recordTaker) error {
	s := &scanner{b: b, client: b.client(), table: []byte(recordsTable.String()),
		template: &pb.Scan{Column: []*pb.Column{{Family: []byte(recordFamily)}}, MaxVersions: proto.Uint32(1)}}
	if r.IsSingle() {
		s.rows = 1
	}
	return s.run(ctx, r, t)
}

// wrote tells whether the record of a key is what the call with this number wrote.
func (b *Backend) wrote(ctx context.Context, key string, writer uint64) bool {
	t := &recordTaker{emit: func(string, []byte, uint64) error { return nil }}
	return b.takeRecords(ctx, row.Single([]byte(key)), t) == nil && t.writer == writer
}

type recordTaker struct {
	emit    func(string, []byte, uint64) error
	key     string
	value   []byte
	version uint64
	writer  uint64 // of the last record; 0 if that is not known
}

// piece implements taker.
func (t *recordTaker) piece(p *piece) (bool, error) {
	t.key = string(p.row)
	for _, c := range p.cells {
		switch string(c.Qualifier) {
		case recordValue:
			t.value = bytes.Clone(c.Value)
		case recordVersion:
			if len(c.Value) != 8 {
				return false, fault.New(fault.Corruption, "record %q has a version of %d bytes", p.row, len(c.Value))
			}
			t.version = binary.BigEndian.Uint64(c.Value)
		case recordWriter:
			if len(c.Value) == 8 {
				t.writer = binary.BigEndian.Uint64(c.Value)
			}
		}
	}
	return false, nil
}

// end implements taker.
func (t *recordTaker) end() (bool, error) {
	key, value, version := t.key, t.value, t.version
	t.value, t.version = nil, 0
	return false, t.emit(key, value, version)
}

// setRecord changes a record of a version: to value, or away if delete is set.
// It returns the new version.
func (b *Backend) setRecord(ctx context.Context, key string, value []byte, version uint64, remove bool) (uint64, error) {
	k := []byte(key)
	// Versions grow, also over a record's end.
	next := max(version+1, uint64(time.Now().UnixNano()))
	var old []byte
	if version != 0 {
		old = binary.BigEndian.AppendUint64(nil, version)
	} else if remove {
		// It must be absent, and then there is nothing to do.
		_, _, err := b.record(ctx, key)
		if errors.Is(err, fault.NotFound) {
			return 0, nil
		}
		if err == nil {
			err = fault.New(fault.Aborted, "Record %s is there", key[1:])
		}
		return 0, err
	}
	writer := *nonce()
	t := &table{name: recordsTable, versioned: true}
	m := mutation(k, pb.MutationProto_PUT, map[string]*pb.MutationProto_ColumnValue{recordFamily: {Family: []byte(recordFamily),
		QualifierValue: []*pb.MutationProto_ColumnValue_QualifierValue{
			{Qualifier: []byte(recordValue), Value: notNil(value)},
			{Qualifier: []byte(recordVersion), Value: binary.BigEndian.AppendUint64(nil, next)},
			{Qualifier: []byte(recordWriter), Value: binary.BigEndian.AppendUint64(nil, writer)}}}})
	if remove {
		c := newChange()
		c.families[recordFamily] = true
		m = c.actions(t, k, nil, nil)[0]
	}
	processed, err := b.atomic(ctx, t, k, []*pb.MutationProto{m}, equals(k, recordFamily, []byte(recordVersion), old))
	switch {
	case err != nil:
		return 0, err
	case processed:
		return next, nil
	}
	// gohbase may have sent the call twice, and the second answer come back. The version does
	// not tell: another call may have chosen the same one.
	if !remove && b.wrote(ctx, key, writer) {
		return next, nil
	}
	return 0, fault.New(fault.Aborted, "Record %s is not of version %d any more", key[1:], version)
}

// GetRecord implements backend.Records.
func (b *Backend) GetRecord(ctx context.Context, key string) ([]byte, uint64, error) {
	return b.record(ctx, clientRecord+key)
}

// PutRecord implements backend.Records.
func (b *Backend) PutRecord(ctx context.Context, key string, value []byte, version uint64) (uint64, error) {
	return b.setRecord(ctx, clientRecord+key, value, version, false)
}

// DeleteRecord implements backend.Records.
func (b *Backend) DeleteRecord(ctx context.Context, key string, version uint64) error {
	_, err := b.setRecord(ctx, clientRecord+key, nil, version, true)
	return err
}

// ListRecords implements backend.Records.
func (b *Backend) ListRecords(ctx context.Context, prefix string, emit func(key string, value []byte, version uint64) error) error {
	return b.records(ctx, row.Prefix([]byte(clientRecord+prefix)), func(key string, value []byte, version uint64) error {
		return emit(key[1:], value, version)
	})
}

// A lease is what a lock's record holds.
type lease struct{ Until time.Time }

// leaseTime is how long a lock is held at most: what is done under it is given
// up leaseSpare before.
const (
	leaseTime  = 2 * time.Minute
	leaseSpare = 10 * time.Second
)

// locked calls f while no other gateway changes what name stands for. HBase has
// no compare-and-set for descriptors.
func (b *Backend) locked(ctx context.Context, name string, f func(ctx context.Context) error) error {
	key := lockRecord + name
	var version uint64
	var until time.Time
	pause := 5 * time.Millisecond
	for {
		value, was, err := b.record(ctx, key)
		if err != nil && !errors.Is(err, fault.NotFound) {
			return err
		}
		var l lease
		if was == 0 || json.Unmarshal(value, &l) != nil || time.Now().After(l.Until) {
			// Not before: the others may have taken longer than a lease.
			until = time.Now().Add(leaseTime)
			mine, err := json.Marshal(lease{until})
			if err != nil {
				return err
			}
			if version, err = b.setRecord(ctx, key, mine, was, false); err == nil {
				break
			}
			if !errors.Is(err, fault.Aborted) {
				return err
			}
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, 200*time.Millisecond)
	}
	held, cancel := context.WithDeadline(ctx, until.Add(-leaseSpare))
	defer cancel()
	err := f(held)
	if held.Err() != nil && ctx.Err() == nil {
		err = fault.New(fault.Unavailable, "HBase's master takes too long: %v", err)
	}
	// Also if the caller has gone: others wait.
	free, done := context.WithTimeout(context.WithoutCancel(ctx), leaseSpare)
	defer done()
	if _, ferr := b.setRecord(free, key, nil, version, true); ferr != nil {
		b.o.Log.Warn("a lock stays until it expires", "lock", name, "error", ferr)
	}
	return err
}
