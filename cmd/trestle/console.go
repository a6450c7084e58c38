package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/trestledb/trestle/cmd/trestle/internal/console"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

// consolePages says what the console of a server may ask for. There is none where
// neither a loopback address nor login over TLS protects it.
func consolePages(cfg *settings.Serve) ops.Pages {
	open := cfg.HTTPListen != "" && (settings.IsLoopback(cfg.HTTPListen) || cfg.AuthOn() && cfg.TLS())
	switch {
	case !open || cfg.Console == settings.Off:
		return ops.NoPages
	case cfg.Console == settings.Read:
		return ops.ReadPages
	}
	return ops.AllPages
}

// openConsole returns the console of a server, nil if it has none.
func openConsole(cfg *settings.Serve) (*console.Console, error) {
	pages := consolePages(cfg)
	if pages == ops.NoPages {
		return nil, nil
	}
	version, _, _ := ops.BuildInfo()
	o := console.Options{ReadOnly: pages == ops.ReadPages, Login: cfg.AuthOn(),
		Version: version, Cluster: cfg.Cluster, API: dialable(cfg.Listen), Emulator: cfg.Emulator}
	if cfg.AuthOn() && cfg.OIDCIssuer != "" {
		o.Provider = &console.Provider{Issuer: cfg.OIDCIssuer, ClientID: cfg.OIDCAudience}
		if cfg.OIDCSecret != "" {
			secret, err := os.ReadFile(cfg.OIDCSecret)
			if err != nil {
				return nil, fmt.Errorf("oidc-secret-file: %w", err)
			}
			o.Provider.Secret = strings.TrimSpace(string(secret))
		}
		if !settings.IsLoopback(cfg.HTTPListen) {
			o.Provider.Base = strings.TrimSuffix(tokenURI(cfg), "/token")
		}
	}
	return console.New(o), nil
}

// printConsole says where the console of a server is.
func printConsole(w io.Writer, cfg *settings.Serve) {
	if consolePages(cfg) != ops.NoPages {
		fmt.Fprintf(w, "console              %s%s\n", httpURL(cfg), console.Path)
	}
}

type settingsKey struct{}

// withSettings has shownSettings of a context below ctx return those of set.
func withSettings(ctx context.Context, set *settings.Set) context.Context {
	return context.WithValue(ctx, settingsKey{}, set.Shown())
}

// shownSettings returns all settings of the process, as an operator is shown them.
func shownSettings(ctx context.Context) []settings.Shown {
	s, _ := ctx.Value(settingsKey{}).([]settings.Shown)
	return s
}
