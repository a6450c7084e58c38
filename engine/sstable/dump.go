package sstable

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/trestledb/trestle/engine/cell"
)

// Dump writes the file in readable form: its Info, where its parts are, and, if
// entries, every entry with the length and the beginning of its value.
func (r *Reader) Dump(ctx context.Context, w io.Writer, entries bool) error {
	t, err := r.pin(ctx)
	if err != nil {
		return err
	}
	defer t.unpin()
	l, err := t.sst.Layout()
	if err != nil {
		return readFailure(r.name, err)
	}
	p, err := t.sst.ReadPropertiesBlock(ctx, nil)
	if err != nil {
		return readFailure(r.name, err)
	}
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "sstable %s: %d bytes\n", r.name, t.info.Size)
	info, err := json.Marshal(t.info)
	if err != nil {
		return err
	}
	fmt.Fprintf(b, "info %s\n", info)
	fmt.Fprintf(b, "rows %s to %s\n", appendKey(nil, t.info.Lo), appendKey(nil, t.info.Hi))
	fmt.Fprintf(b, "blocks: %d data (%d bytes), %d index (%d bytes), filter %d bytes, compression %s (%s)\n",
		len(l.Data), p.DataSize, len(l.Index), p.IndexSize, p.FilterSize, p.CompressionName, p.CompressionStats)
	if entries {
		if err := r.dumpEntries(ctx, b); err != nil {
			_ = b.Flush() // what came before the bad block is of use
			return err
		}
	}
	return b.Flush()
}

func (r *Reader) dumpEntries(ctx context.Context, w io.Writer) error {
	it, err := r.CompactionIterator(ctx)
	if err != nil {
		return err
	}
	defer it.Close()
	var line []byte
	for ok := it.First(); ok; ok = it.Next() {
		e := it.Entry()
		line = appendKey(line[:0], e.Key)
		line = fmt.Appendf(line, " #%d", e.Seq)
		if e.Kind == cell.Delete {
			line = append(line, " delete"...)
		} else {
			const show = 32
			line = fmt.Appendf(line, " %d %q", len(e.Value), e.Value[:min(len(e.Value), show)])
			if len(e.Value) > show {
				line = append(line, "..."...)
			}
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return it.Error()
}
