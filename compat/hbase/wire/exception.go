package wire

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/schema"
)

const hbase = "org.apache.hadoop.hbase."

// A Class is the Java class of an exception. Clients act on it: a class that
// they do not know they take for DoNotRetryIOException.
type Class struct {
	Name string
	// DoNotRetry says that the call would fail again.
	DoNotRetry bool
	// Overloaded asks the client to wait longer.
	Overloaded bool
}

// New returns an exception of the class.
func (c Class) New(format string, args ...any) *Exception {
	return &Exception{Class: c, Msg: fmt.Sprintf(format, args...)}
}

// The classes, all of which clients have had since HBase 1.
var (
	DoNotRetryIO      = Class{Name: hbase + "DoNotRetryIOException", DoNotRetry: true}
	IO                = Class{Name: "java.io.IOException"}
	NotServingRegion  = Class{Name: hbase + "NotServingRegionException"}
	RegionMoved       = Class{Name: hbase + "exceptions.RegionMovedException"}
	RegionOpening     = Class{Name: hbase + "exceptions.RegionOpeningException"}
	RegionTooBusy     = Class{Name: hbase + "RegionTooBusyException"}
	CallQueueTooBig   = Class{Name: hbase + "CallQueueTooBigException", Overloaded: true}
	WrongRegion       = Class{Name: hbase + "regionserver.WrongRegionException"}
	ServerStopped     = Class{Name: hbase + "regionserver.RegionServerStoppedException"}
	ServerNotRunning  = Class{Name: hbase + "ipc.ServerNotRunningYetException"}
	PleaseHold        = Class{Name: hbase + "PleaseHoldException"}
	TimeoutIO         = Class{Name: hbase + "exceptions.TimeoutIOException"}
	UnknownScanner    = Class{Name: hbase + "UnknownScannerException", DoNotRetry: true}
	ScannerReset      = Class{Name: hbase + "exceptions.ScannerResetException", DoNotRetry: true}
	OutOfOrderScanner = Class{Name: hbase + "exceptions.OutOfOrderScannerNextException", DoNotRetry: true}
	NoSuchFamily      = Class{Name: hbase + "regionserver.NoSuchColumnFamilyException", DoNotRetry: true}
	TableNotFound     = Class{Name: hbase + "TableNotFoundException", DoNotRetry: true}
	TableExists       = Class{Name: hbase + "TableExistsException", DoNotRetry: true}
	TableNotEnabled   = Class{Name: hbase + "TableNotEnabledException", DoNotRetry: true}
	TableNotDisabled  = Class{Name: hbase + "TableNotDisabledException", DoNotRetry: true}
	NamespaceExists   = Class{Name: hbase + "NamespaceExistException", DoNotRetry: true}
	NamespaceNotFound = Class{Name: hbase + "NamespaceNotFoundException", DoNotRetry: true}
	InvalidFamily     = Class{Name: hbase + "InvalidFamilyOperationException", DoNotRetry: true}
	SanityCheck       = Class{Name: hbase + "exceptions.FailedSanityCheckException", DoNotRetry: true}
	AccessDenied      = Class{Name: hbase + "security.AccessDeniedException", DoNotRetry: true}
	UnknownRegion     = Class{Name: hbase + "UnknownRegionException", DoNotRetry: true}
	UnknownProtocol   = Class{Name: hbase + "exceptions.UnknownProtocolException", DoNotRetry: true}
	SnapshotExists    = Class{Name: hbase + "snapshot.SnapshotExistsException", DoNotRetry: true}
	SnapshotMissing   = Class{Name: hbase + "snapshot.SnapshotDoesNotExistException", DoNotRetry: true}
	SnapshotCreation  = Class{Name: hbase + "snapshot.SnapshotCreationException", DoNotRetry: true}
	RequestTooBig     = Class{Name: hbase + "ipc.RequestTooBigException", DoNotRetry: true}

	// These end a connection.
	FatalConnection    = Class{Name: hbase + "ipc.FatalConnectionException", DoNotRetry: true}
	WrongVersion       = Class{Name: hbase + "ipc.WrongVersionException", DoNotRetry: true}
	BadAuth            = Class{Name: hbase + "ipc.BadAuthException", DoNotRetry: true}
	UnsupportedCodec   = Class{Name: hbase + "ipc.UnsupportedCellCodecException", DoNotRetry: true}
	UnsupportedCompr   = Class{Name: hbase + "ipc.UnsupportedCompressionCodecException", DoNotRetry: true}
	SecurityNotEnabled = Class{Name: hbase + "ipc.SecurityNotEnabledException", DoNotRetry: true}
)

// An Exception is a failure as a Java client rebuilds it.
type Exception struct {
	Class
	Msg string
	// Host and Port are where a region went, for RegionMoved.
	Host string
	Port int32
}

// Error returns the class and the message, as a Java stack trace begins.
func (e *Exception) Error() string { return e.Name + ": " + e.Msg }

// classes says what becomes of a fault that no handler gave a class.
var classes = map[fault.Kind]Class{
	fault.Invalid:            DoNotRetryIO,
	fault.NotFound:           DoNotRetryIO,
	fault.AlreadyExists:      DoNotRetryIO,
	fault.FailedPrecondition: DoNotRetryIO,
	fault.OutOfRange:         DoNotRetryIO,
	fault.Aborted:            RegionTooBusy,
	fault.PermissionDenied:   AccessDenied,
	fault.Exhausted:          RegionTooBusy,
	fault.Unavailable:        RegionTooBusy,
	fault.Unimplemented:      DoNotRetryIO,
	fault.Corruption:         DoNotRetryIO,
	fault.Fenced:             NotServingRegion,
	fault.Internal:           IO,
}

// ExceptionOf returns the exception that err is to a client.
func ExceptionOf(err error) *Exception {
	var e *Exception
	if errors.As(err, &e) {
		return e
	}
	if schema.IsNoFamily(err) {
		return NoSuchFamily.New("%s", err.Error())
	}
	if c, ok := classes[fault.KindOf(err)]; ok {
		return c.New("%s", err.Error())
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return TimeoutIO.New("%s", err.Error())
	}
	return IO.New("%s", err.Error())
}

// Proto returns e for a response header. Clients look at every field.
func (e *Exception) Proto() *pb.ExceptionResponse {
	r := &pb.ExceptionResponse{ExceptionClassName: proto.String(e.Name), StackTrace: proto.String(e.Error()),
		DoNotRetry: proto.Bool(e.DoNotRetry)}
	if e.Overloaded {
		r.ServerOverloaded = proto.Bool(true)
	}
	if e.Host != "" {
		r.Hostname, r.Port = proto.String(e.Host), proto.Int32(e.Port)
	}
	return r
}

// Pair returns e for an action of a Multi.
func (e *Exception) Pair() *pb.NameBytesPair {
	return &pb.NameBytesPair{Name: proto.String(e.Name), Value: []byte(e.Error())}
}
