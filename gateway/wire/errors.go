package wire

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/request"
)

// ErrorDomain is the google.rpc.ErrorInfo.domain of every refusal.
const ErrorDomain = "bigtable.googleapis.com"

// kinds is the one table from a kind of fault to what a gRPC client sees.
var kinds = [...]struct {
	code   codes.Code
	reason string // ErrorInfo.reason unless the fault names one
	// public tells whether the text of an error that only wraps the kind (and
	// is no fault.Error, whose Msg is written for clients) may be shown.
	public bool
	text   string // shown instead of a text that is not public
}{
	fault.Invalid:            {code: codes.InvalidArgument, reason: "INVALID_REQUEST", public: true},
	fault.NotFound:           {code: codes.NotFound, reason: "RESOURCE_NOT_FOUND", public: true},
	fault.AlreadyExists:      {code: codes.AlreadyExists, reason: "RESOURCE_ALREADY_EXISTS", public: true},
	fault.FailedPrecondition: {code: codes.FailedPrecondition, reason: "PRECONDITION_FAILED", public: true},
	fault.OutOfRange:         {code: codes.OutOfRange, reason: "POSITION_OUT_OF_RANGE", public: true},
	fault.Aborted:            {code: codes.Aborted, reason: "CONCURRENT_CHANGE", public: true},
	fault.PermissionDenied:   {code: codes.PermissionDenied, reason: "PERMISSION_DENIED", public: true},
	fault.Exhausted:          {code: codes.ResourceExhausted, reason: "RESOURCE_EXHAUSTED", public: true},
	fault.Unavailable:        {code: codes.Unavailable, reason: "TEMPORARILY_UNAVAILABLE", text: "The service is temporarily unavailable, try again"},
	fault.Unimplemented:      {code: codes.Unimplemented, reason: "NOT_IMPLEMENTED", public: true},
	fault.Corruption:         {code: codes.DataLoss, reason: "DATA_CORRUPTION", text: "Stored data is corrupt"},
	fault.Fenced:             {code: codes.Unavailable, reason: "TABLET_MOVED", text: "The tablet is moving, try again"},
	fault.Internal:           {code: codes.Internal, reason: "INTERNAL", text: "Internal error"},
}

// What a status repeats of a request is bounded: statuses are in no budget, and clients such as
// Java's take 8 KiB of trailers, which have the text three times, in percent signs and base64.
const (
	maxText = 1 << 10
	// maxMetadata lets a row key of 4 KiB through, which readers of large rows go on behind.
	maxMetadata = 6 << 10
)

// shorten bounds a text, of which the ends say more than the middle.
func shorten(s string) string {
	if len(s) <= maxText {
		return s
	}
	const mark = "…"
	head, tail := maxText*5/8, len(s)-(maxText*3/8-len(mark))
	for range utf8.UTFMax - 1 { // what is no character after that is none before either
		if !utf8.RuneStart(s[head]) {
			head--
		}
		if !utf8.RuneStart(s[tail]) {
			tail++
		}
	}
	return s[:head] + mark + s[tail:]
}

// Code returns the gRPC code that Status gives err.
func Code(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	if k := fault.KindOf(err); k != 0 && int(k) < len(kinds) {
		return kinds[k].code
	}
	switch {
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	}
	if st, ok := status.FromError(err); ok {
		return st.Code()
	}
	return codes.Internal
}

// Status turns an error into what the client is told. What is not written for
// clients (an unknown error, the text behind corruption) goes to log with an
// id, and the client gets the id only. A gRPC status stays as it is, but that
// of a method that is not built gets the details of its kind. Of a long text the
// client gets the ends.
func Status(ctx context.Context, log *slog.Logger, err error) *status.Status {
	if err == nil {
		return nil
	}
	var f *fault.Error
	errors.As(err, &f)
	k := fault.KindOf(err)
	if k == 0 || int(k) >= len(kinds) {
		switch {
		case errors.Is(err, context.Canceled):
			return status.New(codes.Canceled, "The request was cancelled")
		case errors.Is(err, context.DeadlineExceeded):
			return status.New(codes.DeadlineExceeded, "The deadline passed before the request was done")
		}
		st, ok := status.FromError(err)
		switch {
		case !ok && ctx.Err() != nil:
			// Whose caller is gone, or has stopped waiting, fails anywhere.
			log.LogAttrs(ctx, slog.LevelDebug, "request failed after its caller was gone", slog.String("error", err.Error()))
			return Status(ctx, log, ctx.Err())
		case ok && st.Code() == codes.Unimplemented && len(st.Proto().GetDetails()) == 0:
			// A method that is not built, as generated code refuses it.
			f = &fault.Error{Kind: fault.Unimplemented, Msg: st.Message()}
			k = fault.Unimplemented
		case ok:
			return st
		default:
			k = fault.Internal
		}
	}
	row := &kinds[k]
	msg := row.text
	info := &errdetails.ErrorInfo{Reason: row.reason, Domain: ErrorDomain}
	switch {
	case k == fault.Internal || k == fault.Corruption:
		// Even a fault.Error of these kinds may speak of files and addresses.
		id := NewErrorID()
		log.LogAttrs(ctx, slog.LevelError, "request failed",
			slog.String("error_id", id), slog.String("error", err.Error()))
		msg = fmt.Sprintf("%s (error id %s)", row.text, id)
		info.Metadata = map[string]string{"errorId": id}
	case f != nil:
		msg = f.Msg
	case row.public:
		msg = err.Error()
	}
	// Keys in texts may be any bytes; protobuf strings may not.
	msg = shorten(strings.ToValidUTF8(shorten(msg), "\uFFFD"))
	details := make([]protoadapt.MessageV1, 0, 3)
	field := ""
	if f != nil {
		field = shorten(f.Field)
		if f.Reason != "" {
			info.Reason = f.Reason
		}
		for key, v := range f.Metadata {
			if info.Metadata == nil {
				info.Metadata = make(map[string]string, len(f.Metadata))
			}
			if len(v) <= maxMetadata { // a part of a name would name another thing
				info.Metadata[key] = v
			}
		}
	}
	details = append(details, info)
	if f != nil {
		if field != "" && k == fault.Invalid {
			details = append(details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
				{Field: field, Description: msg, Reason: info.Reason}}})
		}
		if field != "" && k == fault.FailedPrecondition {
			details = append(details, &errdetails.PreconditionFailure{Violations: []*errdetails.PreconditionFailure_Violation{
				{Type: info.Reason, Subject: field, Description: msg}}})
		}
		if k == fault.Exhausted {
			details = append(details, &errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{
				{Subject: shorten(quotaSubject(f)), Description: msg}}})
		}
		if f.RetryAfter > 0 {
			details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(f.RetryAfter)})
		}
	}
	st, derr := status.New(row.code, msg).WithDetails(details...)
	if derr != nil {
		// Only metadata that is no valid UTF-8 fails to encode.
		return status.New(row.code, msg)
	}
	return st
}

// quotaSubject says whose quota it was, where the fault says so.
func quotaSubject(f *fault.Error) string {
	if s := f.Metadata["subject"]; s != "" {
		return s
	}
	return "server"
}

// StatusProto is Status for a status that travels inside a message. It is
// never nil: nil is OK.
func StatusProto(ctx context.Context, log *slog.Logger, err error) *spb.Status {
	if err == nil {
		return &spb.Status{}
	}
	return Status(ctx, log, err).Proto()
}

// AddRequestInfo adds the id of the request of r, if that is not nil, to what the client is
// told of its failure.
func AddRequestInfo(p *spb.Status, r *request.Record) {
	if r == nil || p.GetCode() == int32(codes.OK) {
		return
	}
	if d, err := anypb.New(&errdetails.RequestInfo{RequestId: request.IDString(r.ID())}); err == nil {
		p.Details = append(p.Details, d)
	}
}

// NewErrorID returns an id that ties an answer to a line of the log.
func NewErrorID() string {
	return fmt.Sprintf("%016x", rand.Uint64())
}
