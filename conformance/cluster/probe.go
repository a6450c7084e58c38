package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// Connect returns the official clients for a server. Without options the
// connection is in plaintext.
func Connect(ctx context.Context, addr string, more ...grpc.DialOption) (*bigtable.Client, *bigtable.AdminClient, error) {
	conn, err := grpc.NewClient(addr, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: time.Second})}, more...)...)
	if err != nil {
		return nil, nil, err
	}
	data, err := bigtable.NewClientWithConfig(ctx, "project", "instance", bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, option.WithGRPCConn(conn))
	if err != nil {
		return nil, nil, err
	}
	admin, err := bigtable.NewAdminClient(ctx, "project", "instance", option.WithGRPCConn(conn))
	return data, admin, err
}

// A Probe writes and reads one row in each tablet of a table, again and again,
// through the official client with all its retries, and notes how long that
// took: how long the tablet was not available to a user.
type Probe struct {
	Table string
	tbl   *bigtable.Table
	stop  context.CancelFunc
	wg    sync.WaitGroup

	mu      sync.Mutex
	longest []time.Duration // by tablet, since Reset
	began   []time.Time     // of the call that is under way
	failed  []error         // since Reset
	calls   int64
}

// ProbeKey returns the first row of the i-th of n tablets of a probe's table.
func probeKey(i int) string { return fmt.Sprintf("%03d", i) }

// StartProbe makes a table and begins. Between two calls a client pauses.
func StartProbe(ctx context.Context, addr, table string, tablets int, pause time.Duration, more ...grpc.DialOption) (*Probe, error) {
	data, admin, err := Connect(ctx, addr, more...)
	if err != nil {
		return nil, err
	}
	var splits []string
	for i := 1; i < tablets; i++ {
		splits = append(splits, probeKey(i))
	}
	if err := admin.CreateTableFromConf(ctx, &bigtable.TableConf{TableID: table, SplitKeys: splits,
		Families: map[string]bigtable.GCPolicy{"f": bigtable.MaxVersionsPolicy(1)}}); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	p := &Probe{Table: table, tbl: data.Open(table), stop: stop, longest: make([]time.Duration, tablets), began: make([]time.Time, tablets)}
	for i := range tablets {
		p.wg.Go(func() { p.run(ctx, i, pause) })
	}
	return p, nil
}

func (p *Probe) run(ctx context.Context, i int, pause time.Duration) {
	key := probeKey(i) + "-row"
	for n := int64(1); ; n++ {
		// A write, then a read that must find it.
		for _, do := range []func(context.Context) error{
			func(ctx context.Context) error {
				m := bigtable.NewMutation()
				m.Set("f", "n", bigtable.Timestamp(n)*1000, []byte(fmt.Sprint(n)))
				return p.tbl.Apply(ctx, key, m)
			},
			func(ctx context.Context) error {
				r, err := p.tbl.ReadRow(ctx, key, bigtable.RowFilter(bigtable.LatestNFilter(1)))
				if err == nil && (len(r["f"]) != 1 || string(r["f"][0].Value) != fmt.Sprint(n)) {
					return fmt.Errorf("row %s holds %v, written was %d", key, r["f"], n)
				}
				return err
			},
		} {
			start := time.Now()
			p.mu.Lock()
			p.began[i] = start
			p.mu.Unlock()
			octx, cancel := context.WithTimeout(ctx, time.Minute)
			err := do(octx)
			cancel()
			p.mu.Lock()
			p.began[i] = time.Time{}
			p.longest[i] = max(p.longest[i], time.Since(start))
			p.calls++
			if err != nil && ctx.Err() == nil {
				p.failed = append(p.failed, err)
			}
			p.mu.Unlock()
			if err != nil {
				break // the row may not hold what the read would look for
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// Reset forgets what was.
func (p *Probe) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.longest)
	p.failed, p.calls = nil, 0
	for i := range p.began {
		if !p.began[i].IsZero() {
			p.began[i] = time.Now()
		}
	}
}

// Longest returns the longest call to each tablet since Reset, those under way
// included, and the calls that failed.
func (p *Probe) Longest() ([]time.Duration, []error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]time.Duration, len(p.longest))
	for i := range out {
		out[i] = p.longest[i]
		if !p.began[i].IsZero() {
			out[i] = max(out[i], time.Since(p.began[i]))
		}
	}
	return out, p.failed
}

// Progress waits until no call is under way that began before.
func (p *Probe) Progress(ctx context.Context) error {
	start := time.Now()
	for {
		p.mu.Lock()
		waiting := -1
		for i, b := range p.began {
			if !b.IsZero() && b.Before(start) {
				waiting = i
			}
		}
		p.mu.Unlock()
		if waiting < 0 {
			return nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("tablet %d of table %s is not served: %w", waiting, p.Table, ctx.Err())
		}
	}
}

// Stop ends all clients.
func (p *Probe) Stop() {
	p.stop()
	p.wg.Wait()
}
