package cluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/conformance/sdk/beam"
)

// A beamReader is a pipeline of Beam. It is killed when it has written what was acknowledged:
// its runner, the only one that needs no service, has in memory what the connector has noted as
// read. The writers wait for that, and write on while the pipeline starts again.
type beamReader struct {
	t        *testing.T
	pipeline *beam.Pipeline
	process  *beam.Process // nil if it does not run
	out      string
	writers  *tableWriters
}

// newBeamReader compiles the pipeline. jars is a directory of Beam's.
func newBeamReader(t *testing.T, jars, addr string, writers *tableWriters) *beamReader {
	t.Helper()
	dir := t.TempDir()
	p, err := beam.Compile(t.Context(), jars, dir)
	if err != nil {
		t.Fatal(err)
	}
	p.Addr, p.Project, p.Instance, p.Table, p.Start = addr, "project", "instance", "orders", time.Now()
	b := &beamReader{t: t, pipeline: p, out: filepath.Join(dir, "orders.json"), writers: writers}
	t.Cleanup(func() {
		if b.process != nil {
			b.process.Kill()
		}
	})
	return b
}

// run has the pipeline run for a while, or until ctx ends.
func (b *beamReader) run(ctx context.Context, d time.Duration) {
	if b.process == nil {
		p, err := b.pipeline.Run(b.out)
		if err != nil {
			b.t.Error(err)
			return
		}
		b.process = p
	}
	short, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	select {
	case <-b.process.Ended():
		b.t.Error(b.process.Err())
		b.process = nil
	case <-short.Done():
	}
}

// killed runs the pipeline for d after the time that it takes to start and to catch up.
func (b *beamReader) killed(ctx context.Context, d time.Duration) {
	b.run(ctx, 20*time.Second+d)
	b.writers.mu.Lock()
	defer b.writers.mu.Unlock()
	acked := b.writers.acked()
	for ctx.Err() == nil && b.process != nil {
		f, err := b.read()
		if err != nil {
			b.t.Error(err)
			return
		}
		if f.missing(acked) == nil {
			b.process.Kill()
			b.process = nil
			return
		}
		b.run(ctx, time.Second)
	}
}

// upTo runs the pipeline for a while: nobody learns from it how far it has come.
func (b *beamReader) upTo(ctx context.Context, _ time.Time) bool {
	b.run(ctx, 5*time.Second)
	return false
}

func (b *beamReader) read() (*streamFile, error) {
	f, err := os.Open(b.out)
	if errors.Is(err, os.ErrNotExist) {
		return readStream(bytes.NewReader(nil))
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines, err := inOrder(f)
	if err != nil {
		return nil, err
	}
	return readStream(bytes.NewReader(lines))
}

// inOrder returns the lines of a file in the order of rows and commits, each once: a pipeline
// writes records of several partitions at once, and may write some again. The last line may be
// cut off. An error says that a record is there in two forms.
func inOrder(f io.Reader) ([]byte, error) {
	type record struct {
		streamLine
		text []byte
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	var records []record
	for line := range bytes.Lines(b) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		r := record{text: line}
		if err := json.Unmarshal(line, &r.streamLine); err != nil {
			return nil, fmt.Errorf("%.100q: %w", line, err)
		}
		records = append(records, r)
	}
	order := func(a, b record) int {
		return cmp.Or(strings.Compare(a.Row, b.Row), a.Commit.Compare(b.Commit), cmp.Compare(a.Tiebreaker, b.Tiebreaker))
	}
	slices.SortFunc(records, order)
	var out []byte
	for i, r := range records {
		if i > 0 && order(records[i-1], r) == 0 {
			if !bytes.Equal(records[i-1].text, r.text) {
				return nil, fmt.Errorf("a record in two forms:\n%s%s", records[i-1].text, r.text)
			}
			continue
		}
		out = append(out, r.text...)
	}
	return out, nil
}

// TestInOrder: records that a pipeline writes in any order, and again, come out once and in
// order. No other mistake is hidden.
func TestInOrder(t *testing.T) {
	line := func(row string, second int, value string) string {
		return fmt.Sprintf(`{"row":%q,"type":"USER","commit":"2026-01-02T03:04:%02dZ","mutations":[{"op":"SetCell","family":"f","qualifier":"id","timestamp_micros":1000,"value":%q}]}`+"\n", row, second, value)
	}
	a1, a2, b1 := line("a", 1, "x"), line("a", 2, "y"), line("b", 1, "z")
	got, err := inOrder(strings.NewReader(b1 + a2 + a1 + b1 + a1[:20]))
	if want := a1 + a2 + b1; err != nil || string(got) != want {
		t.Errorf("%s, %v; want\n%s", got, err, want)
	}
	for name, in := range map[string]string{"a record in two forms": a1 + line("a", 1, "other"), "half a line within": a1[:20] + a2} {
		if got, err := inOrder(strings.NewReader(in)); err == nil {
			t.Errorf("%s: %s", name, got)
		}
	}
}
