package admin

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/trestledb/trestle/engine/fault"
)

const (
	operationPrefix = "operations/"
	// keepOperations is how long a finished operation can be asked for, at least.
	keepOperations = 7 * 24 * time.Hour
	// purgeInterval is how often old operations are looked for.
	purgeInterval = time.Hour
	// defaultOperations is the page size of ListOperations if none is asked for.
	defaultOperations = 1000
	// maxOperation bounds an operation as it is kept, in bytes: its record must be
	// no larger than what etcd takes, 1.5 MB of base64.
	maxOperation = 1 << 20
)

// A storedOperation is the record of an operation.
type storedOperation struct {
	Operation []byte    `json:"operation"` // protobuf
	Finished  time.Time `json:"finished"`
	// Lease is until when the operation is taken to be running if it is not done.
	Lease time.Time `json:"lease,omitzero"`
}

func (s *storedOperation) decode(b []byte) (*longrunningpb.Operation, error) {
	op := new(longrunningpb.Operation)
	err := json.Unmarshal(b, s)
	if err == nil {
		err = proto.Unmarshal(s.Operation, op)
	}
	if err != nil {
		return nil, fault.New(fault.Corruption, "read operation record: %w", err)
	}
	return op, nil
}

// kept returns op as it is kept: of one that is too large, about a schema bundle or a view,
// without the request, and with no more than the name of what the response is.
func kept(op *longrunningpb.Operation) (*longrunningpb.Operation, error) {
	if proto.Size(op) <= maxOperation {
		return op, nil
	}
	small := proto.Clone(op).(*longrunningpb.Operation)
	shrink := func(in *anypb.Any, drop func(field protoreflect.Name) bool) error {
		m, err := in.UnmarshalNew()
		if err != nil {
			return err
		}
		r := m.ProtoReflect()
		r.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
			if drop(f.Name()) {
				r.Clear(f)
			}
			return true
		})
		return in.MarshalFrom(m)
	}
	if err := shrink(small.GetMetadata(), func(f protoreflect.Name) bool { return f == "original_request" }); err != nil {
		return nil, err
	}
	if r := small.GetResponse(); r != nil {
		if err := shrink(r, func(f protoreflect.Name) bool { return f != "name" }); err != nil {
			return nil, err
		}
	}
	return small, nil
}

// finished stores an operation on resource that is done, and returns it.
func (a *Admin) finished(ctx context.Context, resource string, metadata, response proto.Message) (*longrunningpb.Operation, error) {
	m, err := anypb.New(metadata)
	if err != nil {
		return nil, err
	}
	r, err := anypb.New(response)
	if err != nil {
		return nil, err
	}
	op := &longrunningpb.Operation{Metadata: m, Done: true, Result: &longrunningpb.Operation_Response{Response: r}}
	if _, err := a.newOperation(ctx, resource, op, storedOperation{Finished: a.o.Now()}); err != nil {
		return nil, err
	}
	return op, nil
}

// newOperation names an operation on resource and stores it. It returns the
// version of the record.
func (a *Admin) newOperation(ctx context.Context, resource string, op *longrunningpb.Operation, s storedOperation) (uint64, error) {
	now := a.o.Now()
	for {
		// Names sort by age; the random part sets two of one microsecond apart.
		var random [4]byte
		rand.Read(random[:])
		op.Name = fmt.Sprintf("%s%s/operations/%d%04d", operationPrefix, resource, now.UnixMicro(), binary.BigEndian.Uint32(random[:])%10000)
		switch version, err := a.putOperation(ctx, op, s, 0); {
		case err == nil:
			a.purgeOperations(ctx)
			return version, nil
		case fault.KindOf(err) != fault.Aborted || ctx.Err() != nil:
			return 0, err
		}
	}
}

// purgeClock says when old operations were last looked for.
type purgeClock struct {
	mu   sync.Mutex
	last time.Time
}

// due tells whether it is time, to one caller only.
func (p *purgeClock) due(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.last) < purgeInterval {
		return false
	}
	p.last = now
	return true
}

// purgeOperations forgets operations that were finished long enough ago.
// Operations are few, and this runs once an hour at most; a failure only
// leaves them for the next time.
func (a *Admin) purgeOperations(ctx context.Context) {
	now := a.o.Now()
	if !a.purge.due(now) {
		return
	}
	type old struct {
		key     string
		version uint64
	}
	var olds []old
	err := a.b.ListRecords(ctx, operationPrefix, func(key string, b []byte, version uint64) error {
		var s storedOperation
		if op, err := s.decode(b); err != nil {
			return err
		} else if op.GetDone() && now.Sub(s.Finished) > keepOperations {
			olds = append(olds, old{key, version})
		}
		return nil
	})
	for _, o := range olds {
		err = errors.Join(err, a.b.DeleteRecord(ctx, o.key, o.version))
	}
	if err != nil {
		a.o.Log.LogAttrs(ctx, slog.LevelInfo, "old operations not forgotten", slog.String("error", err.Error()))
	}
}

// storedOperation returns what a record says of an operation.
func (a *Admin) storedOperation(ctx context.Context, name string) (*longrunningpb.Operation, uint64, error) {
	b, version, err := a.b.GetRecord(ctx, name)
	if err != nil {
		return nil, 0, orMissing(err, "name", "Operation", name)
	}
	s := new(storedOperation)
	op, err := s.decode(b)
	if err == nil && !op.GetDone() {
		op, err = a.endAbandoned(ctx, op, s, version)
	}
	return op, version, err
}

// operationAt returns an operation and the version of its record.
func (a *Admin) operationAt(ctx context.Context, name string) (*longrunningpb.Operation, uint64, error) {
	if !strings.HasPrefix(name, operationPrefix+"projects/") {
		return nil, 0, refuse(fault.Invalid, "name", "When parsing '%s' : Operation name expected in the form 'operations/projects/<project_id>/...'.", name)
	}
	return a.storedOperation(ctx, name)
}

// GetOperation implements O1.
func (s *operationsServer) GetOperation(ctx context.Context, req *longrunningpb.GetOperationRequest) (*longrunningpb.Operation, error) {
	op, _, err := s.operationAt(ctx, req.GetName())
	return op, err
}

// errPageFull ends a listing early.
var errPageFull = errors.New("page full")

// ListOperations implements O2: the operations below a resource.
func (s *operationsServer) ListOperations(ctx context.Context, req *longrunningpb.ListOperationsRequest) (*longrunningpb.ListOperationsResponse, error) {
	// gcloud says operations/projects/p, the REST path ends in /operations.
	under := strings.TrimSuffix(req.GetName(), "/operations")
	if !strings.HasPrefix(under, operationPrefix+"projects/") || strings.HasSuffix(under, "/") {
		return nil, refuse(fault.Invalid, "name", "When parsing '%s' : Operation collection expected in the form 'operations/projects/<project_id>/...'.", req.GetName())
	}
	match, err := parseFilter(req.GetFilter(), operationFields)
	if err != nil {
		return nil, err
	}
	p, err := s.newPage(ctx, "operations "+under+" "+req.GetFilter(), req.GetPageSize(), req.GetPageToken())
	if err != nil {
		return nil, err
	}
	if p.size == 0 {
		p.size = defaultOperations
	}
	resp := new(longrunningpb.ListOperationsResponse)
	err = s.b.ListRecords(ctx, under+"/", func(key string, b []byte, version uint64) error {
		if key <= p.after {
			return nil
		}
		stored := new(storedOperation)
		op, err := stored.decode(b)
		if err == nil {
			op, err = s.endAbandoned(ctx, op, stored, version)
		}
		if err != nil {
			return err
		}
		if !match(op.ProtoReflect()) {
			return nil
		}
		if len(resp.Operations) == int(p.size) {
			return errPageFull
		}
		resp.Operations = append(resp.Operations, op)
		return nil
	})
	if errors.Is(err, errPageFull) {
		resp.NextPageToken, err = p.next(ctx, s.Admin, resp.Operations[len(resp.Operations)-1].GetName())
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// CancelOperation implements O3. The operation ends soon, as cancelled unless it
// was done before that. Cancelling what is done has no effect.
func (s *operationsServer) CancelOperation(ctx context.Context, req *longrunningpb.CancelOperationRequest) (*emptypb.Empty, error) {
	op, _, err := s.operationAt(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	if op.GetDone() {
		return new(emptypb.Empty), nil
	}
	t := s.tasks.get(op.GetName())
	if t == nil {
		return nil, refuse(fault.FailedPrecondition, "name", "Operation cannot be cancelled: %s", req.GetName())
	}
	t.cancel(context.Canceled)
	return new(emptypb.Empty), nil
}

// DeleteOperation implements O4: it forgets a finished operation.
func (s *operationsServer) DeleteOperation(ctx context.Context, req *longrunningpb.DeleteOperationRequest) (*emptypb.Empty, error) {
	op, version, err := s.operationAt(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	if !op.GetDone() {
		return nil, refuse(fault.FailedPrecondition, "name", "Operation is still running: %s", req.GetName())
	}
	if err := s.b.DeleteRecord(ctx, op.GetName(), version); err != nil && fault.KindOf(err) != fault.Aborted {
		return nil, orMissing(err, "name", "Operation", req.GetName())
	}
	return new(emptypb.Empty), nil
}
