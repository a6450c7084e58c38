package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// TestRecentLog: the last lines of a log are kept in bounded memory, without secrets, and one
// form of them without rows' keys.
func TestRecentLog(t *testing.T) {
	log := newLogger(io.Discard, settings.JSON, slog.LevelInfo)
	text := recentOf(log)
	log.Info(settingsMessage, "store", "s3://user:password@host/bucket")
	log.With("server", "server-1").WithGroup("g").Warn("something", "tablet", metadata.TabletName{Table: "t", Tablet: 7, Start: []byte("key-1")},
		"error", fault.New(fault.Corruption, "row %q of https://me:password@host", "key-2"), "why", "key-3", "n", 42)
	log.Info("call", "method", "Bearer password", "url", "http://me:password@host/x")
	log.Debug("not kept")
	unbounded(log).Info("audit", "principal", "key-4")
	full, keyless := string(text(true)), string(text(false))
	for _, want := range []string{"key-1", "key-2", "key-3", "key-4", "server=server-1", "g.n=42", "host/x"} {
		if !strings.Contains(full, want) {
			t.Errorf("%s is not in\n%s", want, full)
		}
	}
	for _, want := range []string{"something", "server=server-1", "g.tablet.table=t", "g.tablet.id=", "g.n=42", fault.Corruption.Error(), "audit"} {
		if !strings.Contains(keyless, want) {
			t.Errorf("%s is not in\n%s", want, keyless)
		}
	}
	if strings.Contains(keyless, "key-") || strings.Contains(full+keyless, "password") || strings.Contains(full, "not kept") || strings.Contains(full, "bucket") {
		t.Errorf("too much is kept:\n%s\n%s", full, keyless)
	}
	for i := range 30_000 {
		unbounded(log).Info(fmt.Sprintf("line %d", i), "error", errors.New(strings.Repeat("x", 100)))
	}
	unbounded(log).Info(strings.Repeat("long", 1<<20))
	full, keyless = string(text(true)), string(text(false))
	if len(full)+len(keyless) > recentBytes || len(full) < recentBytes/4 || !strings.Contains(full, "line 29999 ") && !strings.Contains(full, `"line 29999"`) || strings.Contains(full, `"line 1"`) {
		t.Errorf("%d and %d bytes are kept, up to %s", len(full), len(keyless), full[max(0, len(full)-200):])
	}
	if recentOf(slog.New(slog.DiscardHandler)) != nil {
		t.Error("a log that keeps nothing has lines")
	}
}
