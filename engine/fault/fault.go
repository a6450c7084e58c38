package fault

import (
	"errors"
	"fmt"
	"time"
)

// A Kind says what the caller can do about a failure. It is an error itself,
// so that errors.Is(err, fault.NotFound) works on any wrapped form.
type Kind uint8

// The kinds. Each differs from the others in what the caller does next.
const (
	Invalid            Kind = iota + 1 // the request can never succeed as written
	NotFound                           // a named table, family or other resource does not exist
	AlreadyExists                      // the resource to be created is there
	FailedPrecondition                 // the state of the system forbids it; change that state first
	OutOfRange                         // a position outside what is kept
	Aborted                            // a concurrent change won; read again, then retry
	PermissionDenied                   // the caller may not
	Exhausted                          // a quota, the disk or memory is used up; retry later
	Unavailable                        // try again, perhaps elsewhere
	Unimplemented                      // not built
	Corruption                         // bytes on disk are not what was written
	Fenced                             // another server holds this tablet now
	Internal                           // a bug here
)

var kindNames = [...]string{
	Invalid: "invalid", NotFound: "not found", AlreadyExists: "already exists",
	FailedPrecondition: "failed precondition", OutOfRange: "out of range", Aborted: "aborted",
	PermissionDenied: "permission denied", Exhausted: "exhausted", Unavailable: "unavailable",
	Unimplemented: "unimplemented", Corruption: "corruption", Fenced: "fenced", Internal: "internal",
}

// Error returns the kind's name.
func (k Kind) Error() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return fmt.Sprintf("fault kind %d", uint8(k))
}

// An Error is a failure with what a client needs to act on it. Msg is shown to
// the client as it is.
type Error struct {
	Kind Kind
	Msg  string
	// Field is the path of the offending request field, such as
	// "mutations[2].set_cell.timestamp_micros"; empty if no one field is to blame.
	Field string
	// Reason is an UPPER_SNAKE_CASE (or API-defined) constant for programs; it
	// becomes google.rpc.ErrorInfo.reason. Empty means a default by Kind.
	Reason string
	// Metadata becomes google.rpc.ErrorInfo.metadata.
	Metadata map[string]string
	// RetryAfter asks the client to wait that long; it becomes google.rpc.RetryInfo.
	RetryAfter time.Duration
	// Cause is what errors.Is and errors.As look into; Msg already says what a
	// person needs to know of it.
	Cause error
}

// Error returns the message. A cause given to New with %w is part of it.
func (e *Error) Error() string { return e.Msg }

// Unwrap gives both the kind and the cause to errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	if e.Cause != nil {
		return []error{e.Kind, e.Cause}
	}
	return []error{e.Kind}
}

// New returns an Error of kind k with a formatted message. As with fmt.Errorf,
// a %w verb keeps its operand as the cause, for errors.Is and errors.As.
func New(k Kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: k, Msg: err.Error(), Cause: errors.Unwrap(err)}
}

// InvalidField is New(Invalid, …) that names the request field to blame.
func InvalidField(field, format string, args ...any) *Error {
	return &Error{Kind: Invalid, Field: field, Msg: fmt.Sprintf(format, args...)}
}

// In returns a copy of e that says that e was found in the field of a message.
// index is that of the element, or negative if the field is not repeated. The
// text nests as the Bigtable API's does.
func (e *Error) In(field string, index int) *Error {
	out := *e
	if index >= 0 {
		out.Msg = fmt.Sprintf("Error in field '%s' : Error in element #%d : %s", field, index, e.Msg)
		field = fmt.Sprintf("%s[%d]", field, index)
	} else {
		out.Msg = fmt.Sprintf("Error in field '%s' : %s", field, e.Msg)
	}
	if e.Field != "" {
		field += "." + e.Field
	}
	out.Field = field
	return &out
}

// KindOf returns the kind that err wraps, or 0 if it wraps none.
func KindOf(err error) Kind {
	if err == nil {
		return 0
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	var k Kind
	if errors.As(err, &k) {
		return k
	}
	return 0
}
