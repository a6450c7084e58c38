package ops

import (
	"strings"
	"time"

	"google.golang.org/grpc"
)

// StreamInterceptor notes how long each ReadRows takes to its first message.
func (m *Metrics) StreamInterceptor(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if !strings.HasSuffix(info.FullMethod, "/ReadRows") {
		return handler(srv, s)
	}
	return handler(srv, &firstSend{ServerStream: s, m: m, start: time.Now()})
}

// A firstSend is a stream until its first message, and a plain one from then
// on. A stream has one sender at a time.
type firstSend struct {
	grpc.ServerStream
	m     *Metrics
	start time.Time
	sent  bool
}

func (f *firstSend) SendMsg(msg any) error {
	err := f.ServerStream.SendMsg(msg)
	if !f.sent {
		f.sent = true
		f.m.FirstRow(time.Since(f.start))
	}
	return err
}
