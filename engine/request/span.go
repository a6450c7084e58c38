package request

// A Span is a timed part of a traced request. Its methods are safe for concurrent use.
type Span interface {
	// Child begins a part of it.
	Child(name string) Span
	// Int adds an attribute.
	Int(name string, v int64)
	// String adds an attribute. It may not be a row key or a value.
	String(name, v string)
	// Context tells another process of the span.
	Context() SpanContext
	// End ends it; err is why it failed, nil if it did not.
	End(err error)
}

// A SpanContext is what another process has to know of a span to begin a part of it.
type SpanContext struct {
	Trace [16]byte
	Span  [8]byte
	Flags byte
}

// A Tracer begins the spans of requests. Its methods are safe for concurrent use.
type Tracer interface {
	// Sample begins the span of a request, or returns nil. parent is the W3C traceparent
	// that came with it, empty if none did.
	Sample(method, parent string) Span
	// Remote begins a part of a span of another process.
	Remote(of SpanContext, name string) Span
}

// End ends a span that may be nil.
func End(s Span, err error) {
	if s != nil {
		s.End(err)
	}
}
