package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/trestledb/trestle/conformance/sdk/beam"
)

// A change is what is read of a line of Beam's pipeline.
type change struct {
	Row, Type string
	Mutations []struct {
		Op, Family, Qualifier string
		Value                 jsonBytes
	}
}

// jsonBytes are a string if they are UTF-8, else {"base64": "…"}.
type jsonBytes []byte

func (b *jsonBytes) UnmarshalJSON(in []byte) error {
	if bytes.HasPrefix(in, []byte(`"`)) {
		var s string
		err := json.Unmarshal(in, &s)
		*b = []byte(s)
		return err
	}
	var m map[string][]byte
	err := json.Unmarshal(in, &m)
	*b = m["base64"]
	return err
}

// loadWithBeam loads the rows while a pipeline of Beam reads their changes, which must be all
// rows as they were sent, each once. jars is a directory of Beam's.
func (b *bench) loadWithBeam(ctx context.Context, jars string) (err error) {
	dir, err := os.MkdirTemp("", "beam")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p, err := beam.Compile(ctx, jars, dir)
	if err != nil {
		return err
	}
	p.Addr, p.Project, p.Instance, p.Table, p.Start = b.server.Addr, project, instance, "ucd", time.Now()
	file := filepath.Join(dir, "changes")
	cmd := p.Command(file)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		_ = cmd.Process.Kill()
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, log.String())
		}
	}()
	loaded := make(chan error, 1)
	start := time.Now()
	go func() { loaded <- b.load(ctx) }()

	// A minute without a line says that no more will come.
	const patience = time.Minute
	var in *bufio.Reader
	var partial []byte
	seen := make(map[string]bool, b.rows())
	var sum uint64
	end := time.Time{} // of the load
	for last := time.Now(); len(seen) < b.rows() || time.Since(last) < 3*time.Second; {
		select {
		case err := <-ended:
			return fmt.Errorf("the pipeline ended: %w", err)
		case err := <-loaded:
			if err != nil {
				return err
			}
			end = time.Now()
		default:
		}
		if in == nil {
			if f, err := os.Open(file); err == nil {
				defer f.Close()
				in = bufio.NewReaderSize(f, 1<<20)
			}
		}
		var line []byte
		err := io.EOF
		if in != nil {
			line, err = in.ReadBytes('\n')
		}
		partial = append(partial, line...)
		if errors.Is(err, io.EOF) {
			if !end.IsZero() && time.Since(last) > patience {
				return fmt.Errorf("%d of %d rows have come", len(seen), b.rows())
			}
			time.Sleep(20 * time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		var c change
		if err := json.Unmarshal(partial, &c); err != nil {
			return fmt.Errorf("%.200q: %w", partial, err)
		}
		partial, last = partial[:0], time.Now()
		if c.Type != "USER" || len(c.Mutations) != 5 {
			return fmt.Errorf("a change that nobody made: %+v", c)
		}
		if seen[c.Row] {
			return fmt.Errorf("row %q is there twice", c.Row)
		}
		seen[c.Row] = true
		m := c.Mutations
		sum += rowHash(c.Row, string(m[0].Value), string(m[1].Value), string(m[2].Value), m[3].Value, m[4].Value)
		if len(seen) == b.rows() {
			fmt.Printf("  %.0f rows/s through Beam, the last %.1f s after the load\n", float64(b.rows())/time.Since(start).Seconds(), time.Since(end).Seconds())
		}
	}
	if want := b.hash(); sum != want {
		return fmt.Errorf("the changes have hash %016x, the rows %016x", sum, want)
	}
	return nil
}
