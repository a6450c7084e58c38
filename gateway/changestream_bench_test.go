package gateway

import (
	"context"
	"io"
	"testing"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/trestledb/trestle/engine/changes"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/stamp"
)

// A source gives the same record again and again.
type source struct {
	record changes.Record
	n      int
}

func (*source) StreamPartitions(context.Context, string) ([]row.Range, error) {
	return []row.Range{row.All}, nil
}

func (s *source) ReadChanges(ctx context.Context, req *changes.Request, w changes.Writer) (*changes.Close, error) {
	at := req.From
	for range s.n {
		s.record.Stamp = at.Through + stamp.Stride
		at.Through = s.record.Stamp
		full, err := w.Record(&s.record, at)
		if err == nil && full {
			err = w.Flush()
		}
		if err != nil {
			return nil, err
		}
	}
	if err := w.Flush(); err != nil {
		return nil, err
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// raw leaves messages as they are, so that what is measured is the server.
type raw struct{ encoding.CodecV2 }

func (r raw) Unmarshal(data mem.BufferSlice, v any) error {
	if n, ok := v.(*int); ok {
		*n += data.Len()
		return nil
	}
	return r.CodecV2.Unmarshal(data, v)
}

// BenchmarkReadChangeStream reads records of 100 bytes and of 1 KB in one stream.
func BenchmarkReadChangeStream(b *testing.B) {
	for name, size := range map[string]int{"100B": 100, "1KB": 1000} {
		b.Run(name, func(b *testing.B) {
			f := newFixture(b, Options{})
			f.enable()
			f.stub.ChangeStreamer = &source{n: b.N, record: changes.Record{Key: []byte("user1234567890"), Changes: []changes.Change{
				{Op: changes.SetCell, Family: 1, Qualifier: []byte("q"), Timestamp: 1000, Value: make([]byte, size)}}}}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			s, err := f.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, bigtablepb.Bigtable_ReadChangeStream_FullMethodName, grpc.ForceCodecV2(raw{encoding.GetCodecV2("proto")}))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			if err := s.SendMsg(streamRequest(row.All)); err != nil {
				b.Fatal(err)
			}
			if err := s.CloseSend(); err != nil {
				b.Fatal(err)
			}
			bytes := 0
			for range b.N {
				if err := s.RecvMsg(&bytes); err != nil && err != io.EOF {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}
