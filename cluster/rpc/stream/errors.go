package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
)

// The flags of an error: which sentinels errors.Is finds in it.
const (
	isNotServing = 1 << iota
	isUnknown
	isCanceled
	isDeadline
	// isBare is rpc.ErrNotServing itself: nothing follows.
	isBare
)

// appendError writes an error that is not nil.
func appendError(b []byte, err error) []byte {
	if err == error(rpc.ErrNotServing) { //nolint:errorlint // that very one: nothing is lost by leaving out the rest
		return append(b, isNotServing|isBare)
	}
	var flags byte
	for _, f := range errorFlags {
		if errors.Is(err, f.err) {
			flags |= f.flag
		}
	}
	b = append(b, flags)
	b = append(b, byte(fault.KindOf(err)))
	b = appendString(b, err.Error())
	var e *fault.Error
	if !errors.As(err, &e) {
		e = new(fault.Error)
	}
	b = appendString(appendString(b, e.Field), e.Reason)
	b = binary.AppendVarint(b, int64(e.RetryAfter))
	b = binary.AppendUvarint(b, uint64(len(e.Metadata)))
	for k, v := range e.Metadata {
		b = appendString(appendString(b, k), v)
	}
	return b
}

var errorFlags = []struct {
	flag byte
	err  error
}{{isNotServing, rpc.ErrNotServing}, {isUnknown, rpc.ErrUnknown}, {isCanceled, context.Canceled}, {isDeadline, context.DeadlineExceeded}}

// A remote error is one of no kind.
type remoteError struct {
	msg   string
	cause error
}

func (e *remoteError) Error() string { return e.msg }
func (e *remoteError) Unwrap() error { return e.cause }

// error decodes an error.
func (d *decoder) error() error {
	flags := d.Byte()
	if flags&isBare != 0 {
		return rpc.ErrNotServing
	}
	var causes []error
	for _, f := range errorFlags {
		if flags&f.flag != 0 {
			causes = append(causes, f.err)
		}
	}
	kind := fault.Kind(d.Byte())
	e := &fault.Error{Kind: kind, Msg: d.string(), Field: d.string(), Reason: d.string(), RetryAfter: time.Duration(d.Varint()), Cause: errors.Join(causes...)}
	n := d.Count()
	for range n {
		if d.Bad() {
			break
		}
		if e.Metadata == nil {
			e.Metadata = map[string]string{}
		}
		k := d.string()
		e.Metadata[k] = d.string()
	}
	if d.Bad() || kind > fault.Internal {
		return errMalformed
	}
	if kind == 0 {
		return &remoteError{e.Msg, e.Cause}
	}
	return e
}
