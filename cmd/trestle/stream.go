package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"github.com/trestledb/trestle/cmd/trestle/internal/feed"
)

const streamHelp = `Reads the change stream of a table and writes each record as a line of JSON. TABLE
is PROJECT/INSTANCE/TABLE. It follows splits and merges, and tries again by itself.

--to file:PATH appends to a file in which every record is once, also after a crash:
the position is kept in PATH.position. --to https://… posts lines, and posts them
again until the answer is 2xx; a record that comes twice has the same row, commit and
tiebreaker. --to kafka://BROKER[,BROKER…]/TOPIC produces a message for each record, with
the row as its key; that takes a trestle built with -tags kafka. Without --to the lines go
to standard output. With --position a later run goes on where this one ended.`

// A streamRun is what the flags of `trestle stream` say.
type streamRun struct {
	login
	server, profile, to, position, secret string
	start, end                            string
	plaintext                             bool
}

// streamCommand reads the changes of a table.
func streamCommand(p *process) *cobra.Command {
	f := pflag.NewFlagSet("stream", pflag.ContinueOnError)
	f.SortFlags = false
	var r streamRun
	f.StringVar(&r.to, "to", "", "`SINK`: file:PATH, https://URL (or http://) or kafka://BROKER/TOPIC; standard output if empty")
	f.StringVar(&r.position, "position", "", "`FILE` that keeps the position; by default PATH.position of a file")
	f.StringVar(&r.start, "start", "0s", "without a position: `TIME` to begin at, RFC 3339 or how long ago")
	f.StringVar(&r.end, "end", "", "`TIME` to end at, RFC 3339; empty: it goes on")
	f.StringVar(&r.secret, "secret", "", "`FILE` with the secret by which requests are signed ("+feed.SignatureHeader+": sha256=…)")
	f.StringVar(&r.profile, "app-profile", "", "`ID` of the app profile; it must route to a single cluster")
	f.StringVar(&r.server, "server", "127.0.0.1:8086", "`HOST:PORT` of the server")
	f.BoolVar(&r.plaintext, "plaintext", false, "connect without TLS")
	r.flags(f, p)
	c := p.verb("stream TABLE", "print the changes of a table as they are made", streamHelp, f, func(_ *cobra.Command, args []string) int {
		ctx, stop := commandContext(0)
		defer stop()
		if err := r.run(ctx, p, args[0]); err != nil {
			return p.failed(describe(err))
		}
		return exitOK
	})
	completeArg(c, 0, func() (*grpc.ClientConn, error) { return r.dial(r.server, r.plaintext) }, tableArgs)
	return c
}

// fullTable returns the full name of a table given as PROJECT/INSTANCE/TABLE.
func fullTable(arg string) (string, error) {
	if strings.HasPrefix(arg, "projects/") {
		return arg, nil
	}
	parts := strings.Split(arg, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return "", fmt.Errorf("%q is not of the form PROJECT/INSTANCE/TABLE", arg)
	}
	return fmt.Sprintf("projects/%s/instances/%s/tables/%s", parts[0], parts[1], parts[2]), nil
}

// pastTime reads a flag.
func pastTime(flag, s string, now time.Time) (time.Time, error) {
	if ago, err := time.ParseDuration(s); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, fmt.Errorf("--%s %s is neither a time such as 2026-01-02T15:04:05Z nor how long ago, such as 1h", flag, s)
	}
	return t, nil
}

func (r *streamRun) run(ctx context.Context, p *process, arg string) error {
	table, err := fullTable(arg)
	if err != nil {
		return err
	}
	warn := func(err error) { fmt.Fprintf(p.stderr, "trestle stream: %v; trying again\n", describe(err)) }
	f := &feed.Feed{Table: table, Profile: r.profile, Warn: warn}
	if f.Start, err = pastTime("start", r.start, time.Now()); err != nil {
		return err
	}
	if r.end != "" {
		if f.End, err = time.Parse(time.RFC3339, r.end); err != nil {
			return fmt.Errorf("--end %s is no time such as 2026-01-02T15:04:05Z", r.end)
		}
	}
	at, err := r.sink(ctx, p, f, table)
	if err != nil {
		return err
	}
	defer func() { _ = f.Sink.Close() }()
	conn, err := r.dial(r.server, r.plaintext)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	f.Client = bigtablepb.NewBigtableClient(conn)
	return f.Run(ctx, at)
}

// sink opens where the lines go, and returns the position that is kept for it.
func (r *streamRun) sink(ctx context.Context, p *process, f *feed.Feed, table string) (*feed.Position, error) {
	path, isFile := strings.CutPrefix(r.to, "file:")
	position := r.position
	if isFile && position == "" {
		position = path + ".position"
	}
	if r.secret != "" && (isFile || r.to == "") {
		return nil, errors.New("--secret is for --to https://…")
	}
	var at *feed.Position
	if position != "" {
		var err error
		if at, err = feed.Load(position, table); err != nil {
			return nil, err
		}
	}
	switch {
	case r.to == "":
		f.Sink = &feed.Writer{W: p.stdout, Path: position}
		return at, nil
	case isFile:
		if path == "" {
			return nil, errors.New("--to file: lacks the path")
		}
		s, err := feed.OpenFile(path, position, at)
		f.Sink = s
		return at, err
	}
	if position == "" {
		return nil, errors.New("--position is missing: without it nobody knows what was sent")
	}
	if strings.HasPrefix(r.to, "kafka://") {
		if r.secret != "" {
			return nil, errors.New("--secret is for --to https://…")
		}
		var err error
		f.Sink, err = feed.OpenKafka(ctx, r.to, position, f.Warn)
		return at, err
	}
	u, err := url.Parse(r.to)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return nil, fmt.Errorf("--to %s is neither file:PATH nor https://URL nor kafka://BROKER/TOPIC", r.to)
	}
	w := &feed.Webhook{URL: r.to, Path: position, Warn: f.Warn}
	w.Client.Transport = &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, Proxy: http.ProxyFromEnvironment}
	if r.secret != "" {
		b, err := os.ReadFile(r.secret)
		if err != nil {
			return nil, fmt.Errorf("read --secret: %w", err)
		}
		if w.Secret = []byte(strings.TrimSpace(string(b))); len(w.Secret) == 0 {
			return nil, fmt.Errorf("%s has no secret", r.secret)
		}
	}
	f.Sink = w
	return at, nil
}
