package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

// openStack opens the engine with the gateway over it. Tests of the server's
// life replace it.
var openStack opener = func(ctx context.Context, cfg *settings.Serve, m *ops.Metrics, log *slog.Logger) (*stack, error) {
	return nil, errors.New("this build holds no store yet")
}

// dumpers are the kinds of file that inspect can print.
var dumpers = map[string]dumper{}
