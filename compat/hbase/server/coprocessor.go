package server

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/compat/hbase/wire"
)

// noCoprocessor is what HBase answers where a coprocessor was not loaded.
func noCoprocessor(call *pb.CoprocessorServiceCall) error {
	return wire.UnknownProtocol.New("No registered coprocessor service found for %s", shorten(call.GetServiceName()))
}

func coprocessorRequest() proto.Message { return new(pb.CoprocessorServiceRequest) }

func refuseCoprocessor(_ context.Context, _ *Call, req proto.Message) (proto.Message, error) {
	return nil, noCoprocessor(req.(*pb.CoprocessorServiceRequest).GetCall())
}
