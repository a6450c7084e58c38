package history

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	project  = "history"
	instance = "history-1"
)

type attemptsKey struct{}

// once makes a context in which the client sends a unary request a single
// time. The client library would send a write whose connection broke again;
// the write could then take effect twice within one operation, which no
// sequential model allows.
func once(ctx context.Context) context.Context {
	return context.WithValue(ctx, attemptsKey{}, new(atomic.Int32))
}

var errSecondAttempt = status.Error(codes.FailedPrecondition, "history: the outcome of the first attempt is not known")

func limitAttempts(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if n, ok := ctx.Value(attemptsKey{}).(*atomic.Int32); ok && n.Add(1) > 1 {
		return errSecondAttempt
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// A cluster is a connection to the server under test.
type cluster struct {
	cc    *grpc.ClientConn
	data  *bigtable.Client
	admin *bigtable.AdminClient
}

// dial connects in plaintext, unless the options say otherwise.
func dial(ctx context.Context, addr string, more ...grpc.DialOption) (*cluster, error) {
	cc, err := grpc.NewClient(addr, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(limitAttempts),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<28), grpc.MaxCallSendMsgSize(1<<28))}, more...)...)
	if err != nil {
		return nil, err
	}
	c := &cluster{cc: cc}
	c.data, err = bigtable.NewClientWithConfig(ctx, project, instance, bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}},
		option.WithGRPCConn(cc))
	if err == nil {
		c.admin, err = bigtable.NewAdminClient(ctx, project, instance, option.WithGRPCConn(cc))
	}
	if err != nil {
		cc.Close()
		return nil, err
	}
	return c, nil
}

func (c *cluster) close() error {
	return errors.Join(c.data.Close(), c.cc.Close())
}

// table makes a table with families that keep everything.
func (c *cluster) table(ctx context.Context, name string, families ...string) (*bigtable.Table, error) {
	conf := &bigtable.TableConf{TableID: name, Families: map[string]bigtable.GCPolicy{}}
	for _, f := range families {
		conf.Families[f] = bigtable.NoGcPolicy()
	}
	if err := c.admin.CreateTableFromConf(ctx, conf); err != nil {
		return nil, fmt.Errorf("create table %s: %w", name, err)
	}
	return c.data.Open(name), nil
}

// definite tells whether an operation that failed so had no effect.
func definite(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied, codes.ResourceExhausted, codes.Unimplemented, codes.OutOfRange:
		return true
	}
	return false
}
