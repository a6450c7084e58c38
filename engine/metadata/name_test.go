package metadata

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// TestNames: logs of both forms, errors and tools write one id in one way.
func TestNames(t *testing.T) {
	r := &Row{Tablet: 0x1f00000002, Start: []byte("a\x00"), End: []byte(`k\`)}
	name, server := r.Name("projects/p/instances/i/tables/t"), (&Assignment{Server: "server-1", Incarnation: 31}).Owner()
	for got, want := range map[string]string{
		fmt.Sprint(r.Tablet): "1f00000002",
		fmt.Sprint(name):     `tablet 1f00000002 of projects/p/instances/i/tables/t, rows [a\x00, k\\)`,
		fmt.Sprint(server):   "server-1 (incarnation 31)",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for _, form := range []struct {
		handler func(*bytes.Buffer) slog.Handler
		want    []string
	}{
		{func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
			[]string{" id=1f00000002 ", " tablet.id=1f00000002 ", "tablet.table=projects/p/instances/i/tables/t ", `tablet.rows="[a\\x00, k\\\\)"`, "server.name=server-1 server.incarnation=31"}},
		{func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
			[]string{`"id":"1f00000002"`, `"tablet":{"id":"1f00000002","table":"projects/p/instances/i/tables/t","rows":`, `"server":{"name":"server-1","incarnation":31}`}},
	} {
		var b bytes.Buffer
		slog.New(form.handler(&b)).Info("text", "id", r.Tablet, "tablet", name, "server", server)
		for _, want := range form.want {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s does not say %s", b.String(), want)
			}
		}
	}
}
