package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/engine/datadir"
)

// inDataDir is what a server has in its data directory.
var inDataDir = append([]string{"tls", filepath.Base(rootKey(&settings.Serve{}))}, standalone.Files...)

// makeDataDir makes the data directory if it is not there. Nobody else can read
// it, nor with login on change what is in it.
func makeDataDir(cfg *settings.Serve, log *slog.Logger) error {
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	err := datadir.MakePrivate(cfg.DataDir, inDataDir)
	if err != nil && !cfg.AuthOn() {
		log.Warn("the data directory is open to others", "error", err)
		return nil
	}
	return err
}
