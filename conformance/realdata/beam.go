package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
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
	process, err := p.Run(file)
	if err != nil {
		return err
	}
	defer func() {
		process.Kill()
		if err != nil {
			err = fmt.Errorf("%w\n%w", err, process.Err())
		}
	}()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	loaded := make(chan error, 1)
	start := time.Now()
	go func() { loaded <- b.load(ctx) }()

	// A minute without a line says that no more will come.
	const patience = time.Minute
	changes := rowChanges{seen: make(map[string]bool, b.rows())}
	var end time.Time // of the load
	last := start
	for line, err := range follow(ctx, file) {
		if err != nil {
			return err
		}
		if line != nil {
			if err := changes.add(line); err != nil {
				return err
			}
			last = time.Now()
			continue
		}
		select {
		case <-process.Ended():
			return errors.New("no more changes")
		case err := <-loaded:
			if err != nil {
				return err
			}
			end = time.Now()
		default:
		}
		all := len(changes.seen) == b.rows()
		if all && time.Since(last) > 3*time.Second {
			break
		}
		if !all && !end.IsZero() && time.Since(last) > patience {
			return fmt.Errorf("%d of %d rows have come", len(changes.seen), b.rows())
		}
	}
	fmt.Printf("  %.0f rows/s through Beam, the last %.1f s after the load\n", float64(b.rows())/last.Sub(start).Seconds(), last.Sub(end).Seconds())
	if want := b.hash(); changes.sum != want {
		return fmt.Errorf("the changes have hash %016x, the rows %016x", changes.sum, want)
	}
	return nil
}

// follow yields the lines of a file as they are appended, and nil when there is none at the
// moment. The file need not be there yet.
func follow(ctx context.Context, file string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		var in *bufio.Reader
		var line []byte
		for ctx.Err() == nil {
			if in == nil {
				f, err := os.Open(file)
				if err == nil {
					defer f.Close()
					in = bufio.NewReaderSize(f, 1<<20)
				} else if !errors.Is(err, os.ErrNotExist) {
					yield(nil, err)
					return
				}
			}
			err := io.EOF
			if in != nil {
				var more []byte
				more, err = in.ReadBytes('\n')
				line = append(line, more...)
			}
			switch {
			case err == nil:
				if !yield(line, nil) {
					return
				}
				line = line[:0]
			case !errors.Is(err, io.EOF):
				yield(nil, err)
				return
			default:
				if !yield(nil, nil) {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		}
		yield(nil, ctx.Err())
	}
}

// rowChanges are changes that each make a row.
type rowChanges struct {
	seen map[string]bool // by key
	sum  uint64          // of the hashes of the rows
}

// add adds a line of the pipeline.
func (r *rowChanges) add(line []byte) error {
	var c change
	if err := json.Unmarshal(line, &c); err != nil {
		return fmt.Errorf("%.200q: %w", line, err)
	}
	if c.Type != "USER" || len(c.Mutations) != 5 {
		return fmt.Errorf("a change that the load did not make: %+v", c)
	}
	if r.seen[c.Row] {
		return fmt.Errorf("row %q is there twice", c.Row)
	}
	r.seen[c.Row] = true
	m := c.Mutations
	r.sum += rowHash(c.Row, string(m[0].Value), string(m[1].Value), string(m[2].Value), m[3].Value, m[4].Value)
	return nil
}
