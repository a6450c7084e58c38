package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"sync"

	"github.com/trestledb/trestle/engine/fault"
)

// recentBytes bounds what a recentLog keeps.
const recentBytes = 1 << 20

// A recentLog keeps the last lines of a log in memory, for trestle debug zip: each as it was
// written, and without what may tell a row's key. It takes recentBytes at most.
type recentLog struct{ full, keyless lines }

// lines are the last of what was written, up to half of recentBytes.
type lines struct {
	mu    sync.Mutex
	list  [][]byte
	bytes int
}

// lineCost is about what a line takes beside its bytes.
const lineCost = 32

// Write implements io.Writer. It keeps a line, of which there is one a call.
func (l *lines) Write(b []byte) (int, error) {
	n := len(b)
	b = slices.Clone(b[:min(n, 16<<10)])
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, b)
	for l.bytes += len(b) + lineCost; l.bytes > recentBytes/2; l.list = l.list[1:] {
		l.bytes -= len(l.list[0]) + lineCost
	}
	return n, nil
}

// text returns the lines, oldest first.
func (l *lines) text() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Concat(l.list...)
}

// text returns the lines, with what may tell keys if keys is set.
func (l *recentLog) text(keys bool) []byte {
	if keys {
		return l.full.text()
	}
	return l.keyless.text()
}

// handler returns one that keeps what it is given.
func (l *recentLog) handler() slog.Handler {
	to := func(w io.Writer, replace func([]string, slog.Attr) slog.Attr) slog.Handler {
		return slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: replace})
	}
	return notSettings{slog.NewMultiHandler(
		to(&l.full, func(_ []string, a slog.Attr) slog.Attr { return withoutSecrets(a) }),
		to(&l.keyless, func(_ []string, a slog.Attr) slog.Attr { return withoutKeys(a) }))}
}

// notSettings leaves out the line of settings, which debug zip has without secrets.
type notSettings struct{ slog.Handler }

// Handle implements slog.Handler.
func (h notSettings) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == settingsMessage {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h notSettings) WithAttrs(a []slog.Attr) slog.Handler {
	return notSettings{h.Handler.WithAttrs(a)}
}

// WithGroup implements slog.Handler.
func (h notSettings) WithGroup(name string) slog.Handler {
	return notSettings{h.Handler.WithGroup(name)}
}

// settingsMessage is that of the line with a process's settings.
const settingsMessage = "settings"

// secrets are passwords in URLs, and tokens.
var secrets = regexp.MustCompile(`(://)[^/@\s"]+@|([Bb]earer )[^\s"]+`)

func withoutSecrets(a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindString || a.Value.Kind() == slog.KindAny {
		if s := a.Value.String(); secrets.MatchString(s) {
			a.Value = slog.StringValue(secrets.ReplaceAllString(s, "$1$2(left out)"))
		}
	}
	return a
}

// keyless are the attributes with strings that cannot tell a row's key.
var keyless = []string{slog.MessageKey, slog.LevelKey, slog.TimeKey, "id", "table", "tablet", "server", "name", "log", "addr", "object", "view", "backup", "signal",
	"lock", "closed", "op", "call", "method", "face", "code", "request_id", "stack", "version", "message"}

// withoutKeys leaves out what may tell a row's key: of an error there is the kind.
func withoutKeys(a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindAny, slog.KindString:
		err, isError := a.Value.Any().(error)
		switch {
		case isError && errors.Is(err, context.Canceled):
			a.Value = slog.StringValue("canceled")
		case isError:
			a.Value = slog.StringValue(fault.KindOf(err).Error())
		case !slices.Contains(keyless, a.Key):
			a.Value = slog.StringValue("(left out)")
		default:
			return withoutSecrets(a)
		}
	}
	return a
}

// recentOf returns the last lines of log, nil if they are not kept.
func recentOf(log *slog.Logger) func(keys bool) []byte {
	if h, ok := log.Handler().(*boundedLog); ok {
		return h.recent.text
	}
	return nil
}
