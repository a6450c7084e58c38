package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/hrpc"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/model"
	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

// Options of a Backend.
type Options struct {
	// Quorum is the addresses of HBase's ZooKeeper servers, host:port separated
	// by commas.
	Quorum string
	// Root is HBase's node in ZooKeeper. Empty means /hbase.
	Root string
	// Project and Instance are the ids of the instance that HBase's namespace
	// "default" is. Empty means "hbase" and "default".
	Project, Instance string
	// Timeout is how long one RPC is tried for, when the caller's deadline is
	// later. Zero means one minute.
	Timeout time.Duration
	// Connections is the number of connections to each region server. Zero means
	// two.
	Connections int
	// SchemaAge is for how long a table's schema is used before it is read again:
	// that long a change that another gateway or HBase's shell made may go
	// unnoticed. Zero means two seconds.
	SchemaAge time.Duration
	// Log takes what an administrator should know. Nil means slog.Default.
	Log *slog.Logger
}

// WithDefaults returns o with its zero values replaced.
func (o Options) WithDefaults() Options {
	if o.Root == "" {
		o.Root = "/hbase"
	}
	if o.Project == "" {
		o.Project = "hbase"
	}
	if o.Instance == "" {
		o.Instance = "default"
	}
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	if o.Connections == 0 {
		o.Connections = 2
	}
	if o.SchemaAge == 0 {
		o.SchemaAge = 2 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Validate reports everything that is wrong with o.
func (o Options) Validate() error {
	var errs []error
	if o.Quorum == "" {
		errs = append(errs, errors.New("no ZooKeeper server is given"))
	}
	if o.Connections < 0 || o.Connections > 64 {
		errs = append(errs, fmt.Errorf("%d connections; 1 to 64 are possible", o.Connections))
	}
	if o.Timeout < 0 || o.SchemaAge < 0 {
		errs = append(errs, errors.New("a time is negative"))
	}
	return errors.Join(errs...)
}

// A Backend keeps tables in HBase. It is safe for concurrent use, and several
// may use one cluster.
type Backend struct {
	o     Options
	place place

	clients []gohbase.Client
	next    atomic.Uint32
	master  gohbase.RPCClient
	// background are the goroutines that no call waits for.
	background sync.WaitGroup
	stop       context.CancelFunc // ends the sweeps

	mu struct {
		sync.Mutex
		tables map[string]*table // by resource name
	}
}

// A table is what the data methods know of a table.
type table struct {
	name   model.Name
	schema *schema.Table
	// versioned says that rows have a version cell, and that the families have
	// NEW_VERSION_BEHAVIOR.
	versioned bool
	unit      model.Unit
	read      time.Time
}

// key returns the table's name as gohbase wants it.
func (t *table) key() []byte { return []byte(t.name.String()) }

// Open connects to a cluster and makes the table of records if it is not there.
func Open(ctx context.Context, o Options) (*Backend, error) {
	if err := o.Validate(); err != nil {
		return nil, fault.New(fault.Invalid, "HBase: %w", err)
	}
	o = o.WithDefaults()
	b := &Backend{o: o, place: place{o.Project, o.Instance}}
	b.mu.tables = map[string]*table{}
	swept, stop := context.WithCancel(context.WithoutCancel(ctx))
	b.stop = stop
	options := []gohbase.Option{gohbase.ZookeeperRoot(o.Root), gohbase.FlushInterval(0), gohbase.EffectiveUser("trestle")}
	for range o.Connections {
		b.clients = append(b.clients, gohbase.NewClient(o.Quorum, options...))
	}
	b.master = gohbase.NewAdminClient(o.Quorum, options...).(gohbase.RPCClient)
	if err := b.openRecords(ctx); err != nil {
		b.Close()
		return nil, fmt.Errorf("open HBase at %s: %w", o.Quorum, err)
	}
	b.background.Go(func() { b.sweep(swept) })
	return b, nil
}

// Close closes the connections. Calls under way fail.
func (b *Backend) Close() {
	b.stop()
	b.background.Wait()
	for _, c := range b.clients {
		c.Close()
	}
}

// client returns one of the connections.
func (b *Backend) client() gohbase.RPCClient {
	return b.clients[b.next.Add(1)%uint32(len(b.clients))].(gohbase.RPCClient)
}

// ask sends a request to the master.
func ask[M proto.Message](ctx context.Context, b *Backend, name string, request proto.Message, answer func() proto.Message) (M, error) {
	begin := time.Now()
	for {
		m, err := send[M](ctx, b.master, b.o.Timeout, masterCall(name, request, answer))
		// A master that has just started is not ready at once.
		if !is(err, "PleaseHoldException", "ServerNotRunningYetException", "MasterNotRunningException") || time.Since(begin) > b.o.Timeout {
			return m, err
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return m, err
		}
	}
}

// wait waits for a procedure of the master to end.
func (b *Backend) wait(ctx context.Context, id uint64) error {
	pause := 5 * time.Millisecond
	for {
		r, err := ask[*pb.GetProcedureResultResponse](ctx, b, "getProcedureResult", &pb.GetProcedureResultRequest{ProcId: proto.Uint64(id)},
			func() proto.Message { return new(pb.GetProcedureResultResponse) })
		if err != nil {
			return err
		}
		switch r.GetState() {
		case pb.GetProcedureResultResponse_FINISHED:
			if e := r.GetException(); e != nil {
				g := e.GetGenericException()
				return thrown(g.GetClassName(), g.GetMessage())
			}
			return nil
		case pb.GetProcedureResultResponse_NOT_FOUND:
			// The master forgets procedures some time after their end.
			return nil
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		pause = min(2*pause, 200*time.Millisecond)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// masterCall is a call of the master.
func masterCall(name string, request proto.Message, answer func() proto.Message) *call {
	return &call{name: name, request: func(hrpc.RegionInfo) proto.Message { return request }, answer: answer}
}
