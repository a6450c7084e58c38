package main

import (
	"context"
	"io"
	stdlog "log"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

// maxLines bounds the lines of one message in a second: whoever may call a
// server can cause some kinds of line as often as it likes, such as by reading
// what is damaged. maxMessages bounds the messages that are counted apart.
const (
	maxLines    = 50
	maxMessages = 1000
)

// newLogger returns a logger in one of settings' formats.
func newLogger(w io.Writer, format string, level slog.Level) *slog.Logger {
	// The audit log among the other lines does not depend on their level.
	o := &slog.HandlerOptions{Level: min(level, slog.LevelInfo)}
	var all slog.Handler = slog.NewTextHandler(w, o)
	if format == settings.JSON {
		all = slog.NewJSONHandler(w, o)
	}
	recent := new(recentLog)
	return slog.New(&boundedLog{slog.NewMultiHandler(all, recent.handler()), level, newLineCounts(), recent})
}

// unbounded returns a logger to where log writes, which writes every line
// whatever the level of log is.
func unbounded(log *slog.Logger) *slog.Logger {
	if h, ok := log.Handler().(*boundedLog); ok {
		return slog.New(h.Handler)
	}
	return log
}

// A boundedLog is a handler that leaves out the lines of a message beyond
// maxLines in a second, and says how many they were. Who asked for lines of
// slog.LevelDebug gets all of them.
type boundedLog struct {
	slog.Handler
	level  slog.Level
	counts *lineCounts
	recent *recentLog
}

// Enabled implements slog.Handler.
func (b *boundedLog) Enabled(_ context.Context, l slog.Level) bool { return l >= b.level }

// Handle implements slog.Handler.
func (b *boundedLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Level > slog.LevelDebug && !b.counts.add(r.Message, func(left int) {
		// Nobody waits for this line.
		_ = b.Handler.Handle(context.WithoutCancel(ctx), leftOut(r, left))
	}) {
		return nil
	}
	return b.Handler.Handle(ctx, r)
}

func leftOut(r slog.Record, n int) slog.Record {
	out := slog.NewRecord(time.Now(), r.Level, "log lines left out", 0)
	out.AddAttrs(slog.String("message", r.Message), slog.Int("lines", n))
	return out
}

// WithAttrs implements slog.Handler.
func (b *boundedLog) WithAttrs(a []slog.Attr) slog.Handler {
	return &boundedLog{b.Handler.WithAttrs(a), b.level, b.counts, b.recent}
}

// WithGroup implements slog.Handler.
func (b *boundedLog) WithGroup(name string) slog.Handler {
	return &boundedLog{b.Handler.WithGroup(name), b.level, b.counts, b.recent}
}

// lineCounts count lines by message. A message's count begins with its first
// line and ends a second later.
type lineCounts struct {
	after func(time.Duration, func()) // time.AfterFunc but in tests
	mu    struct {
		sync.Mutex
		lines map[string]*lineCount
	}
}

type lineCount struct {
	n    int
	tell func(left int) // once there are more than maxLines
}

func newLineCounts() *lineCounts {
	c := &lineCounts{after: func(d time.Duration, f func()) { time.AfterFunc(d, f) }}
	c.mu.lines = map[string]*lineCount{}
	return c
}

// add tells whether a line may be written. If one may not, a tell of the message
// is called with the number of those that were not when its second is over.
func (c *lineCounts) add(message string, tell func(left int)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.mu.lines[message]
	if l == nil && len(c.mu.lines) >= maxMessages {
		message = "" // they are too many to be told apart
		l = c.mu.lines[message]
	}
	if l == nil {
		l = new(lineCount)
		c.mu.lines[message] = l
		c.after(time.Second, func() { c.end(message) })
	}
	if l.n++; l.n > maxLines {
		l.tell = tell
	}
	return l.n <= maxLines
}

func (c *lineCounts) end(message string) {
	c.mu.Lock()
	l := c.mu.lines[message]
	delete(c.mu.lines, message)
	c.mu.Unlock()
	if l.tell != nil {
		l.tell(l.n - maxLines)
	}
}

// httpErrors returns where an HTTP server writes what it has to say, of
// handshakes that failed among other things.
func httpErrors(log *slog.Logger) *stdlog.Logger {
	return stdlog.New(lineWriter(func(line string) { log.Warn("HTTP server", "error", line) }), "", 0)
}

// A lineWriter is given lines, each by one Write.
type lineWriter func(line string)

func (w lineWriter) Write(b []byte) (int, error) {
	w(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}
