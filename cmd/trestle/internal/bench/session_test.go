package bench

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	btpb "cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/gateway"
)

// trestle starts a gateway over the model, outside of emulator mode.
func trestle(t *testing.T, o gateway.Options) string {
	t.Helper()
	srv, err := gateway.New(model.New(model.Options{}), o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := errors.Join(srv.Stop(ctx), <-served); err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// Both ways are measured on one server, and every answer is looked at.
func TestSessions(t *testing.T) {
	o := small(trestle(t, gateway.Options{}), "random-write", "random-read", "ycsb-a")
	o.Against, o.Sessions, o.Slices = o.Endpoint, true, 2
	rep, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := rep.Err(); err != nil {
		t.Error(err)
	}
	for _, r := range rep.Results {
		if r.Rows == 0 || len(r.Errors) > 0 {
			t.Errorf("%+v", r)
		}
	}
}

// A server without sessions is told from one that is slow.
func TestNoSessions(t *testing.T) {
	o := small(trestle(t, gateway.Options{NoSessions: true}), "random-write")
	o.Sessions = true
	rep, err := Run(t.Context(), o)
	if err == nil {
		err = rep.Err()
	}
	if err == nil && len(rep.Results[0].Errors) == 0 {
		t.Errorf("measured what is not there: %+v", rep.Results[0])
	}
	if err != nil && !strings.Contains(err.Error(), "Unimplemented") {
		t.Error(err)
	}
}

func TestSessionFrames(t *testing.T) {
	open := unmarshal(t, appendOpen(nil, "tbl"), new(btpb.SessionRequest)).GetOpenSession()
	equal(t, unmarshal(t, open.GetPayload(), new(btpb.OpenTableRequest)), &btpb.OpenTableRequest{TableName: "tbl", Permission: btpb.OpenTableRequest_PERMISSION_READ_WRITE})
	b := appendCall(nil, 300, 1, sizeBytes(3))
	v := unmarshal(t, appendBytes(b, 1, []byte("key")), new(btpb.SessionRequest)).GetVirtualRpc()
	equal(t, unmarshal(t, v.GetPayload(), new(btpb.TableRequest)), &btpb.TableRequest{Payload: &btpb.TableRequest_ReadRow{ReadRow: &btpb.SessionReadRowRequest{Key: []byte("key")}}})
	if v.RpcId != 300 {
		t.Errorf("id %d", v.RpcId)
	}
	// Answers that are not those to the call.
	s := &session{id: 7}
	frame, err := proto.Marshal(&btpb.VirtualRpcResponse{RpcId: 6})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.outcome(frame, func([]byte) error { return nil }); !errors.Is(err, errMessage) {
		t.Errorf("an answer to another call: %v", err)
	}
}
