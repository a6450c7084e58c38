//go:build sim

package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/objstorage"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/lock"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/filter"
	"github.com/trestledb/trestle/engine/metadata"
	"github.com/trestledb/trestle/engine/objectstore"
	"github.com/trestledb/trestle/engine/row"
)

// plants are mistakes that the storm must find, by name.
var plants = map[string]func(*Options){
	"I1, I15: the store ignores that an object must be absent": func(o *Options) {
		o.WrapStore = func(_ string, s objectstore.Store) objectstore.Store { return &carelessStore{Store: s} }
	},
	"I2: a segment is acknowledged while it is on its way": func(o *Options) {
		o.WrapStore = func(_ string, s objectstore.Store) objectstore.Store { return &hastyStore{s} }
	},
	"I4: a change is carried out twice": func(o *Options) {
		twice := o.Twice
		o.Twice = func(m Message) bool { return m.Kind == "ReadModifyWriteRow" || twice(m) }
		o.twiceAll = true
	},
	"I5: the row of a split's left child is not added": func(o *Options) {
		o.WrapDialer = metaPlant("server", func(s rpc.TabletServer) rpc.TabletServer {
			return &metaServer{s, func(c *cas) {
				if len(c.then) == 0 { // it must not exist
					c.otherwise = nil
				}
			}}
		})
	},
	"I6: changes of METADATA rows compare no versions": func(o *Options) {
		o.WrapDialer = metaPlant("server", func(s rpc.TabletServer) rpc.TabletServer { return &metaServer{s, (*cas).blind} })
	},
	"I7: the master does not see backups": func(o *Options) {
		o.WrapLock = func(node string, l lock.Service) lock.Service {
			if strings.HasPrefix(node, "master") {
				return &blindLock{l}
			}
			return l
		}
	},
	"I8: a log is trimmed and that is not written down": func(o *Options) {
		o.WrapLock = func(node string, l lock.Service) lock.Service { return &forgetfulLock{l} }
	},
	"I8: fences are deleted": func(o *Options) {
		o.WrapStore = func(_ string, s objectstore.Store) objectstore.Store { return &fenceless{s} }
	},
	"I11: a backup leaves out an SSTable": func(o *Options) {
		o.WrapDialer = metaPlant("client", func(s rpc.TabletServer) rpc.TabletServer { return &lossyServer{s} })
	},
	"I12: changes of a master compare no versions": func(o *Options) {
		o.WrapDialer = metaPlant("master", func(s rpc.TabletServer) rpc.TabletServer { return &metaServer{s, (*cas).blind} })
	},
	"I13: recovery replays nothing": func(o *Options) {
		o.WrapLock = func(node string, l lock.Service) lock.Service { return &amnesia{l} }
	},
}

// A carelessStore puts what is there already.
type carelessStore struct{ objectstore.Store }

func (s *carelessStore) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	err := s.Store.PutIfAbsent(ctx, name, data)
	if errors.Is(err, fault.AlreadyExists) {
		if err = s.Delete(ctx, name); err == nil {
			err = s.Store.PutIfAbsent(ctx, name, data)
		}
	}
	return err
}

// A hastyStore says that segments are stored before they are.
type hastyStore struct{ objectstore.Store }

func (s *hastyStore) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	if !strings.Contains(name, "/") || len(data) == fenceBytes {
		return s.Store.PutIfAbsent(ctx, name, data)
	}
	data = bytes.Clone(data)
	go func() {
		time.Sleep(100 * time.Millisecond)
		_ = s.Store.PutIfAbsent(context.WithoutCancel(ctx), name, data)
	}()
	return nil
}

// Create is not changed.
func (s *hastyStore) Create(ctx context.Context, name string) (objstorage.Writable, error) {
	return s.Store.Create(ctx, name)
}

// A fenceless store has no fences for long.
type fenceless struct{ objectstore.Store }

func (s *fenceless) PutIfAbsent(ctx context.Context, name string, data []byte) error {
	err := s.Store.PutIfAbsent(ctx, name, data)
	if err == nil && len(data) == fenceBytes {
		_ = s.Delete(ctx, name)
	}
	return err
}

// A cas is a change of a METADATA row.
type cas struct {
	predicate       *filter.Node
	then, otherwise []row.Mutation
}

// blind makes the change whatever is there.
func (c *cas) blind() {
	if len(c.then) == 0 {
		c.then = c.otherwise
	} else {
		c.otherwise = c.then
	}
}

type metaServer struct {
	rpc.TabletServer
	change func(*cas)
}

func (s *metaServer) CheckAndMutateRow(ctx context.Context, at rpc.Target, key []byte, predicate *filter.Node, then, otherwise []row.Mutation) (bool, error) {
	c := &cas{predicate, then, otherwise}
	put := len(then) > 0
	s.change(c)
	matched, err := s.TabletServer.CheckAndMutateRow(ctx, at, key, c.predicate, c.then, c.otherwise)
	if len(c.then) > 0 && len(c.otherwise) > 0 {
		matched = put // as its caller wants it
	}
	return matched, err
}

type wrappedDialer struct {
	rpc.Dialer
	wrap func(rpc.TabletServer) rpc.TabletServer
}

func (d *wrappedDialer) Dial(addr string) rpc.TabletServer { return d.wrap(d.Dialer.Dial(addr)) }

// metaPlant wraps the servers that the nodes of a kind call: METADATA's.
func metaPlant(kind string, wrap func(rpc.TabletServer) rpc.TabletServer) func(string, rpc.Dialer) rpc.Dialer {
	return func(node string, d rpc.Dialer) rpc.Dialer {
		if strings.HasPrefix(node, kind) {
			return &wrappedDialer{d, wrap}
		}
		return d
	}
}

// A lossyServer leaves out an SSTable of what is cut.
type lossyServer struct{ rpc.TabletServer }

func (s *lossyServer) Cut(ctx context.Context, number uint64) ([]*metadata.Row, error) {
	rows, err := s.TabletServer.Cut(ctx, number)
	for _, r := range rows {
		if n := len(r.Files); n > 0 {
			r.Files = r.Files[:n-1]
			break
		}
	}
	return rows, err
}

// A blindLock shows no backups.
type blindLock struct{ lock.Service }

func (l *blindLock) List(ctx context.Context, prefix string) ([]lock.Item, int64, error) {
	items, revision, err := l.Service.List(ctx, prefix)
	if strings.HasPrefix(prefix, catalog.BackupsPrefix) {
		items = nil
	}
	return items, revision, err
}

// A forgetfulLock does not keep how far logs are trimmed.
type forgetfulLock struct{ lock.Service }

func (l *forgetfulLock) Put(ctx context.Context, key string, value []byte, version int64) (int64, error) {
	var state catalog.LogState
	if version != 0 && strings.HasPrefix(key, catalog.LogsPrefix) && json.Unmarshal(value, &state) == nil && !state.Frozen {
		return version, nil
	}
	return l.Service.Put(ctx, key, value, version)
}

// amnesia says of logs that all of them has been trimmed.
type amnesia struct{ lock.Service }

func (l *amnesia) Get(ctx context.Context, key string) (lock.Item, error) {
	i, err := l.Service.Get(ctx, key)
	var state catalog.LogState
	var id uint64
	if err == nil && strings.HasPrefix(key, catalog.LogsPrefix) && json.Unmarshal(i.Value, &state) == nil {
		if _, serr := fmt.Sscanf(key, catalog.LogsPrefix+"%x", &id); serr == nil {
			state.Kept = commitlog.Pos{Log: commitlog.ID(id), Segment: 1 << 20}
			i.Value, err = json.Marshal(state)
		}
	}
	return i, err
}

// TestPlantedBugs: the storm finds each of the mistakes. TRESTLE_SIM_PLANTS is
// how many seeds it has for that. A storm that a mistake keeps from coming to an
// end is given up, and says nothing.
func TestPlantedBugs(t *testing.T) {
	if os.Getenv("TRESTLE_SIM_PLANT") != "" {
		t.Skip("this is a storm with a mistake")
	}
	runs := 40
	if v := os.Getenv("TRESTLE_SIM_PLANTS"); v != "" {
		var err error
		if runs, err = strconv.Atoi(v); err != nil {
			t.Fatal("TRESTLE_SIM_PLANTS:", err)
		}
	}
	storm := func(t *testing.T, name string, seed int) (out []byte, failed bool) {
		// Seconds of processor time, as others may keep the machine busy. A storm takes less than one.
		cmd := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -t 20; exec "$0" "$@"`, os.Args[0], "-test.run=^TestStorm$", "-test.v")
		cmd.Env = append(os.Environ(), "TRESTLE_SIM_PLANT="+name, fmt.Sprint("TRESTLE_SIM_SEED=", seed), "TRESTLE_SIM_RUNS=1")
		out, _ = cmd.CombinedOutput()
		return out, bytes.Contains(out, []byte("--- FAIL: TestStorm/seed="))
	}
	for _, name := range slices.Sorted(maps.Keys(plants)) {
		t.Run(name, func(t *testing.T) {
			var out []byte
			seed, failed := 1, false
			for ; seed <= runs; seed++ {
				if out, failed = storm(t, name, seed); failed {
					break
				}
			}
			if !failed {
				t.Fatalf("not found in %d seeds, the last of them:\n%s", runs, out[max(0, len(out)-2000):])
			}
			var why []string
			for line := range strings.Lines(string(out)) {
				if strings.HasPrefix(line, "    ") && strings.Contains(line, "_test.go:") && !strings.Contains(line, "acknowledged, ") && !strings.Contains(line, "too many") {
					why = append(why, strings.TrimSpace(line))
				}
			}
			t.Logf("after %d seeds: %s", seed, why[:min(3, len(why))])
		})
	}
}
