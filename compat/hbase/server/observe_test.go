package server

import (
	"sync"
	"testing"
	"time"

	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
	"github.com/trestledb/trestle/engine/request"
)

// calledOnes is an Observer that remembers.
type calledOnes struct {
	mu      sync.Mutex
	methods []string
	failed  int
	bytes   int64
}

func (o *calledOnes) CallStarted(*request.Record, string) {}

func (o *calledOnes) CallDone(r *request.Record, _ *Call, err error, _ time.Time, _ time.Duration, received, sent int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.methods = append(o.methods, r.Face.String()+" "+r.Method)
	if err != nil {
		o.failed++
	}
	o.bytes += received + sent
}

// Each call is told, one of an unknown method without its name.
func TestObserver(t *testing.T) {
	o := new(calledOnes)
	f := newFixture(t, Options{Observer: o})
	c := f.dial("ClientService", nil)
	get := &pb.GetRequest{Region: &pb.RegionSpecifier{Type: pb.RegionSpecifier_REGION_NAME.Enum(), Value: []byte("none")}, Get: &pb.Get{Row: []byte("r")}}
	c.fail("Get", get, nil, wire.NotServingRegion)
	c.fail("GuessedByClient", get, nil, wire.DoNotRetryIO)
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.methods) != 2 || o.methods[0] != "hbase Get" || o.methods[1] != "hbase unknown" || o.failed != 2 || o.bytes == 0 {
		t.Errorf("%q, %d failed, %d bytes", o.methods, o.failed, o.bytes)
	}
}
