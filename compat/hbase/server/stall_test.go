package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
)

// TestStalledClient: a client that does not take its responses keeps others waiting for
// their memory for seconds. While no other client waits it may take its time.
func TestStalledClient(t *testing.T) {
	f := newFixture(t, Options{ResponseMemory: 4 << 20, MaxResultBytes: 1 << 20})
	table := f.table("t", oneFamily, nil)
	region := f.regions(table)[0].Specifier()
	for i := range 2 {
		f.wide(table, fmt.Sprint("r", i), 16, 64<<10)
	}
	const scans = 24
	slow := f.dial("ClientService", nil)
	if err := slow.nc.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		t.Fatal(err)
	}
	pile := func() {
		t.Helper()
		for range scans {
			slow.send("Scan", &pb.ScanRequest{Region: region, Scan: &pb.Scan{}, NumberOfRows: proto.Uint32(1), CloseScanner: proto.Bool(true)}, nil)
		}
		stuck := func() bool {
			f.server.mu.Lock()
			defer f.server.mu.Unlock()
			for c := range f.server.mu.conns {
				since := c.writing.Load()
				if c.client.waiting.Load() > 0 && since != 0 && time.Since(time.Unix(0, since)) > 100*time.Millisecond {
					return true
				}
			}
			return false
		}
		for end := time.Now().Add(patience); !stuck(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("all responses were written")
			}
		}
	}
	pile()
	f.server.endStalled(time.Now().Add(stall))
	for range scans {
		if h, _ := slow.receive(nil); h.Exception != nil {
			t.Fatal(h.Exception)
		}
	}

	pile()
	other := f.dial("ClientService", nil)
	answered := make(chan struct{})
	go func() {
		for {
			select {
			case <-answered:
				return
			case <-time.After(time.Millisecond):
				// A piece that has been on its way for a moment, not one that just began.
				f.server.endStalled(time.Now().Add(stall - 50*time.Millisecond))
			}
		}
	}()
	defer close(answered)
	other.call("Get", &pb.GetRequest{Region: region, Get: &pb.Get{Row: []byte("none")}}, nil, nil)
	if _, err := io.Copy(io.Discard, slow.nc); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the stalled connection is still there")
	}
	whole(t, "ended", f.server.o.Memory)
}
