package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
)

type adminKey struct{}

// withAdmin lets what is called with the context answer for the admin service.
func withAdmin(ctx context.Context, a *ops.Admin) context.Context {
	return context.WithValue(ctx, adminKey{}, a)
}

// adminOf returns that service, or one that has nothing to tell.
func adminOf(ctx context.Context) *ops.Admin {
	if a, ok := ctx.Value(adminKey{}).(*ops.Admin); ok {
		return a
	}
	return ops.NewAdmin()
}

// selfOf returns what a process tells of itself.
func selfOf(ctx context.Context, cfg *settings.Serve, m *ops.Metrics, h *ops.Health, log *slog.Logger) *ops.Self {
	host, _ := os.Hostname()
	s := &ops.Self{Name: cmp.Or(plainName(host), "server") + fmt.Sprintf("-%d", os.Getpid()), Memory: cfg.Memory, Metrics: m, Health: h, Logs: recentOf(log)}
	shown := shownSettings(ctx)
	s.Settings, s.Certificates = settingsText(shown), certificateFiles(cfg, shown)
	return s
}

// certificateFiles returns the files of the certificates that a process shows to others.
func certificateFiles(cfg *settings.Serve, shown []settings.Shown) (files []string) {
	if cfg.TLSCert != "" {
		files = append(files, cfg.TLSCert)
	}
	for _, x := range shown {
		if (x.Name == "cluster-cert" || x.Name == "etcd-cert") && x.Value != "" && !slices.Contains(files, x.Value) {
			files = append(files, x.Value)
		}
	}
	return files
}

// settingsText has a line for each setting, and where it comes from. A URL's user and
// password are left out, and so is what it ends with behind a question mark.
func settingsText(list []settings.Shown) string {
	var b strings.Builder
	for _, x := range list {
		if strings.Contains(x.Value, "://") {
			parts := strings.Split(x.Value, ",")
			for k, part := range parts {
				if u, err := url.Parse(part); err != nil {
					parts[k] = "(left out)"
				} else if u.User != nil || u.RawQuery != "" {
					u.User, u.RawQuery = nil, ""
					parts[k] = u.String()
				}
			}
			x.Value = strings.Join(parts, ",")
		}
		fmt.Fprintf(&b, "%s: %s (%s)\n", x.Name, x.Value, x.Origin)
	}
	return b.String()
}
