package sweep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// Options of a sweep.
type Options struct {
	// Random is the number of random requests for each method, and of random
	// byte strings. Zero means 20.
	Random int
	// Seed makes the random requests.
	Seed uint64
	// Timeout of one call. A call that takes as long hangs. Zero means a minute.
	Timeout time.Duration
}

// A Method is what the calls of one RPC came to.
type Method struct {
	Name string // service/method
	// Empty is the answer to the empty request.
	Empty codes.Code
	// Random and Garbage count the answers to random requests and to bytes.
	Random, Garbage map[codes.Code]int
	// Problems are what should not be, without repetition.
	Problems []string
}

// A Report is the outcome of a sweep.
type Report struct {
	Methods []Method
	// Lost counts connections that broke.
	Lost int
	// Refusals counts answers other than OK; Explained those with a detail.
	Refusals, Explained int
}

// Implemented returns the number of methods whose empty request is answered
// with anything but UNIMPLEMENTED.
func (r *Report) Implemented() (n int) {
	for _, m := range r.Methods {
		if m.Empty != codes.Unimplemented {
			n++
		}
	}
	return n
}

// Problems returns all problems, each with its method in front.
func (r *Report) Problems() (out []string) {
	for _, m := range r.Methods {
		for _, p := range m.Problems {
			out = append(out, m.Name+": "+p)
		}
	}
	return out
}

// Write prints a table.
func (r *Report) Write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "METHOD\tEMPTY\tRANDOM\tBYTES\tPROBLEMS")
	for _, m := range r.Methods {
		fmt.Fprintf(tw, "%s\t%v\t%s\t%s\t%s\n", m.Name, m.Empty, tally(m.Random), tally(m.Garbage), strings.Join(m.Problems, "; "))
	}
	fmt.Fprintf(tw, "%d methods, %d implemented, %d connections lost, %d of %d refusals explained\n",
		len(r.Methods), r.Implemented(), r.Lost, r.Explained, r.Refusals)
	return tw.Flush()
}

func tally(m map[codes.Code]int) string {
	var out []string
	for _, c := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%v:%d", c, m[c]))
	}
	return strings.Join(out, " ")
}

// Descriptors returns the methods of the three Bigtable services, of which
// there are 84, and of the operations service behind them.
func Descriptors() []protoreflect.MethodDescriptor {
	var out []protoreflect.MethodDescriptor
	for _, f := range []protoreflect.FileDescriptor{
		bigtablepb.File_google_bigtable_v2_bigtable_proto,
		adminpb.File_google_bigtable_admin_v2_bigtable_instance_admin_proto,
		adminpb.File_google_bigtable_admin_v2_bigtable_table_admin_proto,
		longrunningpb.File_google_longrunning_operations_proto,
	} {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				out = append(out, s.Methods().Get(j))
			}
		}
	}
	return out
}

// connections counts the connections of a client that ended.
type connections struct{ lost atomic.Int64 }

func (*connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (*connections) HandleRPC(context.Context, stats.RPCStats)                         {}
func (*connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (c *connections) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ended := s.(*stats.ConnEnd); ended {
		c.lost.Add(1)
	}
}

func dial(addr string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient(addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)))...)
}

// Run sweeps the server at addr. An error means that the sweep itself did not
// work; what the server does wrong is in the report.
func Run(ctx context.Context, addr string, o Options) (*Report, error) {
	if o.Random == 0 {
		o.Random = 20
	}
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	conns := &connections{}
	cc, err := dial(addr, grpc.WithStatsHandler(conns))
	if err != nil {
		return nil, err
	}
	defer cc.Close()
	s := &sweeper{Options: o, cc: cc, report: &Report{}}
	// A table for the random requests to meet; they may well delete it.
	_, err = adminpb.NewBigtableTableAdminClient(cc).CreateTable(ctx, &adminpb.CreateTableRequest{Parent: names[4], TableId: "t",
		Table: &adminpb.Table{ColumnFamilies: map[string]*adminpb.ColumnFamily{"f": {}}}})
	if err != nil && status.Code(err) != codes.AlreadyExists {
		return nil, fmt.Errorf("create a table: %w", err)
	}
	for _, d := range Descriptors() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.method(ctx, d)
	}
	s.report.Lost = int(conns.lost.Load())
	return s.report, nil
}

type sweeper struct {
	Options
	cc     *grpc.ClientConn
	report *Report
}

func (s *sweeper) method(ctx context.Context, d protoreflect.MethodDescriptor) {
	service := string(d.Parent().FullName())
	m := Method{Name: service[strings.LastIndexByte(service, '.')+1:] + "/" + string(d.Name()),
		Random: map[codes.Code]int{}, Garbage: map[codes.Code]int{}}
	g := generator{rand.New(rand.NewPCG(s.Seed, uint64(len(s.report.Methods))))}
	m.Empty = s.call(ctx, &m, d, nil, false)
	for range s.Random {
		msg := dynamicpb.NewMessage(d.Input())
		g.fill(msg, 4)
		b, err := proto.Marshal(msg)
		if err != nil {
			continue // random strings may be no UTF-8
		}
		m.Random[s.call(ctx, &m, d, b, false)]++
	}
	for range s.Random {
		m.Garbage[s.call(ctx, &m, d, g.bytes(200), true)]++
	}
	s.report.Methods = append(s.report.Methods, m)
}

// call sends one request and judges the answer.
func (s *sweeper) call(ctx context.Context, m *Method, d protoreflect.MethodDescriptor, request []byte, garbage bool) codes.Code {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	err := invoke(ctx, s.cc, fmt.Sprintf("/%s/%s", d.Parent().FullName(), d.Name()), request)
	st := status.Convert(err)
	problem := func(format string, args ...any) {
		if p := fmt.Sprintf(format, args...); !slices.Contains(m.Problems, p) {
			m.Problems = append(m.Problems, p)
		}
	}
	undecoded := garbage && strings.Contains(st.Message(), "unmarshal")
	switch st.Code() {
	case codes.OK:
		return codes.OK
	case codes.Unknown, codes.DataLoss:
		problem("answered %v: %s", st.Code(), st.Message())
	case codes.Internal:
		// grpc-go itself answers so when the bytes are no message.
		if !undecoded {
			problem("answered %v: %s", st.Code(), st.Message())
		}
	case codes.DeadlineExceeded:
		problem("hung for %v", s.Timeout)
	case codes.Canceled:
		problem("answered %v: %s", st.Code(), st.Message())
	case codes.Unavailable:
		problem("unavailable: %s", st.Message())
	}
	if st.Code() == codes.Internal && undecoded {
		return st.Code()
	}
	s.report.Refusals++
	if explained(st) {
		s.report.Explained++
	} else {
		problem("%v without a google.rpc detail: %s", st.Code(), st.Message())
	}
	return st.Code()
}

// explained tells whether a status carries a google.rpc detail.
func explained(st *status.Status) bool {
	for _, d := range st.Proto().GetDetails() {
		if strings.HasPrefix(d.GetTypeUrl(), "type.googleapis.com/google.rpc.") {
			return true
		}
	}
	return false
}

// invoke makes a call of any kind with one request, already encoded, and reads
// answers until the end, or a hundred of them: some streams are endless.
func invoke(ctx context.Context, cc *grpc.ClientConn, method string, request []byte) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, grpc.ForceCodec(raw{}))
	if err != nil {
		return err
	}
	if err := st.SendMsg(&request); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := st.CloseSend(); err != nil {
		return err
	}
	for range 100 {
		var answer []byte
		if err := st.RecvMsg(&answer); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
	return nil
}

// raw is a codec of bytes.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (raw) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = slices.Clone(b)
	return nil
}
func (raw) Name() string { return "proto" }
