package admin

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/wire"
)

const (
	// patience is how long a call waits for the operation that it began: most are
	// done by then, and spare their client the asking.
	patience = 250 * time.Millisecond
	// taskLease is how long an operation is taken to be running after its server
	// last said so, which it does three times as often.
	taskLease = 30 * time.Second
)

var errStopped = &fault.Error{Kind: fault.Aborted, Msg: "The server was stopped before the operation was done"}

// errGoesOn says of an operation that what it is about goes on without it: it is neither
// done nor failed, and its outcome is there later.
var errGoesOn = errors.New("the operation goes on")

// A task is a long-running operation that this process carries out.
type task struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when its outcome is stored
}

// tasks are the operations that run, and what else runs in the background.
type tasks struct {
	sync.Mutex
	running map[string]*task // by name of the operation
	ctx     context.Context
	stop    context.CancelCauseFunc
	wait    sync.WaitGroup
}

func (ts *tasks) init() {
	ts.running = map[string]*task{}
	ts.ctx, ts.stop = context.WithCancelCause(context.Background())
}

// get returns the task of an operation, or nil.
func (ts *tasks) get(operation string) *task {
	ts.Lock()
	defer ts.Unlock()
	return ts.running[operation]
}

// spawn calls do on a goroutine of its own, unless the Admin is closed.
func (ts *tasks) spawn(do func()) bool {
	ts.Lock()
	defer ts.Unlock()
	if ts.ctx.Err() != nil {
		return false
	}
	ts.wait.Go(do)
	return true
}

// Start begins what is done in the background: automated backups, and
// forgetting what belongs to nothing any more.
func (a *Admin) Start() {
	a.tasks.spawn(func() {
		tick := time.NewTicker(a.o.Maintenance)
		defer tick.Stop()
		for {
			a.maintain(a.tasks.ctx)
			select {
			case <-tick.C:
			case <-a.tasks.ctx.Done():
				return
			}
		}
	})
}

// Close ends what runs in the background. Operations that are not done end as
// aborted; it returns after the last of them.
func (a *Admin) Close() {
	a.tasks.Lock()
	a.tasks.stop(errStopped)
	a.tasks.Unlock()
	a.tasks.wait.Wait()
}

// A work does what an operation is about. It returns the operation's metadata as
// it is in the end, also with an error. A context error says that ctx was
// cancelled before it had any effect; errGoesOn leaves the operation as it is.
type work func(ctx context.Context, operation string) (metadata, response proto.Message, err error)

// begin begins an operation on resource, described by metadata until it is
// done. ended, if not nil, is called once when the operation is done, or could
// not begin.
func (a *Admin) begin(ctx context.Context, resource string, metadata proto.Message, do work, ended func()) (*longrunningpb.Operation, error) {
	if ended == nil {
		ended = func() {}
	}
	m, err := anypb.New(metadata)
	if err != nil {
		ended()
		return nil, err
	}
	op := &longrunningpb.Operation{Metadata: m}
	version, err := a.newOperation(ctx, resource, op, storedOperation{Lease: a.o.Now().Add(taskLease)})
	if err != nil {
		ended()
		return nil, err
	}
	// What the request may was checked when it came; its end is not the work's.
	run, cancel := context.WithCancelCause(a.tasks.ctx)
	t := &task{cancel: cancel, done: make(chan struct{})}
	a.tasks.Lock()
	a.tasks.running[op.GetName()] = t
	a.tasks.Unlock()
	final := proto.Clone(op).(*longrunningpb.Operation)
	carry := func() {
		defer func() {
			a.tasks.Lock()
			delete(a.tasks.running, op.GetName())
			a.tasks.Unlock()
			cancel(nil)
			close(t.done)
		}()
		stop := a.renew(run, op, version)
		m, r, err := do(run, op.GetName())
		ended()
		version = stop()
		if errors.Is(err, errGoesOn) {
			return
		}
		if errors.Is(err, context.Canceled) && run.Err() != nil {
			err = context.Cause(run)
		}
		err = a.conclude(final, m, r, err)
		if err == nil {
			err = a.settle(final, version)
		}
		if err != nil {
			a.o.Log.LogAttrs(context.Background(), slog.LevelWarn, "outcome of an operation not stored",
				slog.String("operation", op.GetName()), slog.String("error", err.Error()))
		}
	}
	if !a.tasks.spawn(carry) {
		cancel(errStopped)
		carry()
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-t.done:
		return final, nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return op, nil
}

// renew says from time to time that op is running, until the returned function
// is called, which returns the version of its record.
func (a *Admin) renew(ctx context.Context, op *longrunningpb.Operation, version uint64) func() uint64 {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(taskLease / 3)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			version = a.extend(context.WithoutCancel(ctx), op, version)
		}
	}()
	return func() uint64 {
		cancel()
		<-done
		return version
	}
}

// extend says once that op is running. It returns the version of its record, which it
// reads after an error: the record may have been stored, and the answer lost.
func (a *Admin) extend(ctx context.Context, op *longrunningpb.Operation, version uint64) uint64 {
	v, err := a.putOperation(ctx, op, storedOperation{Lease: a.o.Now().Add(taskLease)}, version)
	if err == nil {
		return v
	}
	if now, v, err := a.storedOperation(ctx, op.GetName()); err == nil && !now.GetDone() {
		return v
	}
	return version
}

// settle stores op, which is done, and tries again for as long as a lease. No other process
// stores an operation before it is done: such a record of another version is ours, and
// its answer was lost.
func (a *Admin) settle(op *longrunningpb.Operation, version uint64) error {
	ctx := context.Background()
	for until := time.Now().Add(taskLease); ; {
		_, err := a.putOperation(ctx, op, storedOperation{Finished: a.o.Now()}, version)
		if err == nil {
			return nil
		}
		now, v, lost := a.storedOperation(ctx, op.GetName())
		switch {
		case lost == nil && now.GetDone():
			if mine, kerr := kept(op); kerr == nil && proto.Equal(now, mine) {
				return nil
			}
			return err
		case lost == nil && v != version:
			version = v
			continue
		case fault.KindOf(lost) == fault.NotFound:
			return err
		}
		if time.Now().After(until) {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-a.tasks.ctx.Done():
			return err
		}
	}
}

// conclude turns op into what it is when it is done.
func (a *Admin) conclude(op *longrunningpb.Operation, metadata, response proto.Message, failure error) error {
	if metadata != nil {
		m, err := anypb.New(metadata)
		if err != nil {
			return err
		}
		op.Metadata = m
	}
	op.Done = true
	if failure != nil {
		op.Result = &longrunningpb.Operation_Error{Error: wire.StatusProto(context.Background(), a.o.Log, failure)}
	} else {
		r, err := anypb.New(response)
		if err != nil {
			return err
		}
		op.Result = &longrunningpb.Operation_Response{Response: r}
	}
	return nil
}

// putOperation stores op.
func (a *Admin) putOperation(ctx context.Context, op *longrunningpb.Operation, s storedOperation, version uint64) (uint64, error) {
	op, err := kept(op)
	if err != nil {
		return 0, err
	}
	if s.Operation, err = deterministic.Marshal(op); err != nil {
		return 0, err
	}
	b, err := json.Marshal(s)
	if err != nil {
		return 0, err
	}
	return a.b.PutRecord(ctx, op.GetName(), b, version)
}

// endAbandoned ends an operation whose server has ended, so that none carries it
// out any more: done if what it was about is there, failed if not.
func (a *Admin) endAbandoned(ctx context.Context, op *longrunningpb.Operation, s *storedOperation, version uint64) (*longrunningpb.Operation, error) {
	if op.GetDone() || a.tasks.get(op.GetName()) != nil || a.o.Now().Before(s.Lease) {
		return op, nil
	}
	m, err := op.GetMetadata().UnmarshalNew()
	if err != nil {
		return nil, fault.New(fault.Corruption, "read metadata of %s: %w", op.GetName(), err)
	}
	response, err := a.outcome(ctx, op.GetName(), m)
	if errors.Is(err, errGoesOn) {
		return op, nil
	}
	if err != nil {
		return nil, err
	}
	var failure error
	if response == nil {
		failure = errStopped
	}
	op = proto.Clone(op).(*longrunningpb.Operation)
	if err := a.conclude(op, m, response, failure); err != nil {
		return nil, err
	}
	if _, err := a.putOperation(ctx, op, storedOperation{Finished: a.o.Now()}, version); fault.KindOf(err) == fault.Aborted {
		op, _, err = a.storedOperation(ctx, op.GetName())
		return op, err
	} else if err != nil {
		return nil, err
	}
	return op, nil
}
