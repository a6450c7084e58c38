package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

// TestLogIsBounded writes what a caller could cause at any rate.
func TestLogIsBounded(t *testing.T) {
	var out bytes.Buffer
	log := newLogger(&out, settings.Text, slog.LevelDebug)
	var ends []func()
	log.Handler().(*boundedLog).counts.after = func(_ time.Duration, f func()) { ends = append(ends, f) }
	for i := range 2000 {
		log.With("of", "caller").Error("request failed", "error_id", i)
	}
	log.Warn("another message")
	for range maxLines + 10 {
		log.Debug("asked for")
	}
	count := func(text string) int { return strings.Count(out.String(), text) }
	if n := count(`msg="request failed"`); n != maxLines {
		t.Errorf("%d lines of a message in a second", n)
	}
	if count("another message") != 1 || count("asked for") != maxLines+10 {
		t.Error("lines of other messages, or for debugging, are missing")
	}
	out.Reset()
	for _, end := range ends {
		end()
	}
	if got := out.String(); !strings.Contains(got, `level=ERROR msg="log lines left out"`) || !strings.Contains(got, `message="request failed" lines=1950`) || strings.Count(got, "\n") != 1 {
		t.Errorf("when the second is over: %q", got)
	}
	out.Reset()
	ends = nil
	log.Error("request failed")
	if count("request failed") != 1 {
		t.Error("the next second's first line is missing")
	}
	for i := range 2 * maxMessages {
		log.Warn(fmt.Sprint("message ", i))
	}
	if n := count("msg=\"message "); n < maxMessages-1 || n > maxMessages+maxLines || len(ends) > maxMessages+1 {
		t.Errorf("%d lines of a message each, %d timers", n, len(ends))
	}
}

// TestAuditIgnoresTheLevel expects that of the logger for the audit log only.
func TestAuditIgnoresTheLevel(t *testing.T) {
	var out bytes.Buffer
	log := newLogger(&out, settings.JSON, slog.LevelError)
	log.Info("line")
	for range maxLines + 1 {
		unbounded(log).Info("audit")
	}
	if got := out.String(); strings.Contains(got, `"line"`) || strings.Count(got, `"audit"`) != maxLines+1 {
		t.Error(got)
	}
}
