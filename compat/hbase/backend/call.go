package backend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/hrpc"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/engine/fault"
)

// A call is an RPC that gohbase carries: it satisfies hrpc.Call.
type call struct {
	name       string
	table, key []byte
	// request is asked again each time the call is sent, perhaps for another
	// region.
	request func(hrpc.RegionInfo) proto.Message
	answer  func() proto.Message
	// block is the cell block of the answer.
	block []byte
	// sent is how often gohbase has sent the call, or tried to. It may try still when
	// the caller has given up.
	sent atomic.Int32

	region  hrpc.RegionInfo
	results chan hrpc.RPCResult

	mu struct {
		sync.Mutex
		ctx context.Context
	}
}

// Name implements hrpc.Call.
func (c *call) Name() string { return c.name }

// Description implements hrpc.Call.
func (c *call) Description() string { return c.name }

// Table implements hrpc.Call.
func (c *call) Table() []byte { return c.table }

// Key implements hrpc.Call.
func (c *call) Key() []byte { return c.key }

// Region implements hrpc.Call.
func (c *call) Region() hrpc.RegionInfo { return c.region }

// SetRegion implements hrpc.Call.
func (c *call) SetRegion(r hrpc.RegionInfo) { c.region = r }

// ToProto implements hrpc.Call.
func (c *call) ToProto() proto.Message {
	c.sent.Add(1)
	return c.request(c.region)
}

// NewResponse implements hrpc.Call.
func (c *call) NewResponse() proto.Message { return c.answer() }

// ResultChan implements hrpc.Call.
func (c *call) ResultChan() chan hrpc.RPCResult { return c.results }

// Context implements hrpc.Call.
func (c *call) Context() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.ctx
}

// SetContext implements hrpc.Call.
func (c *call) SetContext(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.ctx = ctx
}

// DeserializeCellBlocks keeps the cell block for the caller.
func (c *call) DeserializeCellBlocks(_ proto.Message, b []byte) (uint32, error) {
	c.block = b
	return uint32(len(b)), nil
}

// send sends c and waits for the answer. gohbase tries again for as long as the
// region is moving, splitting or too busy, and so until the context ends or
// timeout has passed.
func send[M proto.Message](ctx context.Context, rpc gohbase.RPCClient, timeout time.Duration, c *call) (answer M, err error) {
	if err := ctx.Err(); err != nil {
		return answer, err
	}
	mine, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c.mu.ctx = mine
	c.results = make(chan hrpc.RPCResult, 1)
	msg, err := rpc.SendRPC(c)
	// gohbase also says so if its look into hbase:meta came back early.
	for i := 1; i < 4 && errors.Is(err, gohbase.TableNotFound); i++ {
		if sleep(mine, time.Duration(i)*20*time.Millisecond) != nil {
			break
		}
		msg, err = rpc.SendRPC(c)
	}
	switch {
	case err == nil:
		return msg.(M), nil
	case ctx.Err() != nil:
		return answer, ctx.Err()
	case mine.Err() != nil:
		return answer, fault.New(fault.Unavailable, "HBase did not answer %s within %v", c.name, timeout)
	}
	return answer, translate(err)
}

// An exception is an error that HBase answered, or that gohbase made of one.
type exception struct {
	// class is the Java class without its package.
	class string
	err   error
}

// Error returns the class and the first line of what it says.
func (e *exception) Error() string { return e.err.Error() }

// Unwrap returns the error with its kind.
func (e *exception) Unwrap() error { return e.err }

// is tells whether err is a Java exception of one of classes.
func is(err error, classes ...string) bool {
	var e *exception
	if !errors.As(err, &e) {
		return false
	}
	for _, c := range classes {
		if e.class == c {
			return true
		}
	}
	return false
}

const javaPrefix = "HBase Java exception "

// translate gives an error of gohbase its kind.
func translate(err error) error {
	if errors.Is(err, gohbase.TableNotFound) {
		return &exception{"TableNotFoundException", fault.New(fault.NotFound, "table not found in HBase")}
	}
	if errors.Is(err, gohbase.ErrClientClosed) || errors.Is(err, gohbase.ErrCannotFindRegion) {
		return fault.New(fault.Unavailable, "HBase: %w", err)
	}
	text := err.Error()
	if i := strings.Index(text, javaPrefix); i >= 0 {
		class, stack, _ := strings.Cut(text[i+len(javaPrefix):], ":\n")
		return thrown(class, stack)
	}
	return fault.New(fault.Unavailable, "HBase: %w", err)
}

// kinds are the exceptions that say something about the request. All others are
// the cluster's trouble, and may pass.
var kinds = map[string]fault.Kind{
	"TableNotFoundException":          fault.NotFound,
	"NamespaceNotFoundException":      fault.NotFound,
	"NoSuchColumnFamilyException":     fault.NotFound,
	"SnapshotDoesNotExistException":   fault.NotFound,
	"UnknownSnapshotException":        fault.NotFound,
	"TableExistsException":            fault.AlreadyExists,
	"NamespaceExistException":         fault.AlreadyExists,
	"SnapshotExistsException":         fault.AlreadyExists,
	"TableNotEnabledException":        fault.FailedPrecondition,
	"TableNotDisabledException":       fault.FailedPrecondition,
	"AccessDeniedException":           fault.PermissionDenied,
	"DoNotRetryIOException":           fault.Invalid,
	"IllegalArgumentException":        fault.Invalid,
	"FailedSanityCheckException":      fault.Invalid,
	"InvalidFamilyOperationException": fault.Invalid,
	"RequestTooBigException":          fault.Invalid,
	"UnsupportedOperationException":   fault.Unimplemented,
}

// thrown is the error for a Java exception.
func thrown(class, stack string) error {
	short := class[strings.LastIndexByte(class, '.')+1:]
	kind, ok := kinds[short]
	if !ok {
		kind = fault.Unavailable
	}
	line, _, _ := strings.Cut(stack, "\n")
	if !strings.Contains(line, short) {
		line = fmt.Sprintf("%s: %s", class, line)
	}
	return &exception{short, fault.New(kind, "HBase: %s", strings.TrimSpace(line))}
}

// pairError is thrown for an exception inside a message.
func pairError(p *pb.NameBytesPair) error { return thrown(p.GetName(), string(p.GetValue())) }

func specifier(r hrpc.RegionInfo) *pb.RegionSpecifier {
	return &pb.RegionSpecifier{Type: pb.RegionSpecifier_REGION_NAME.Enum(), Value: r.Name()}
}
