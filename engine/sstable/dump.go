package sstable

import (
	"bufio"
	"context"
	"fmt"
	"io"

	"github.com/trestledb/trestle/engine/cell"
)

// Dump writes the file in readable form, keys in quotes as row.Escape writes them: its Info, where its parts are, and, if
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
	t.info.dump(b)
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

func (i *Info) dump(w io.Writer) {
	fmt.Fprintf(w, "rows: %s to %s\n", appendKey(nil, i.Lo), appendKey(nil, i.Hi))
	if i.PlainRows {
		fmt.Fprintln(w, "rows have no byte 00")
	}
	fmt.Fprintf(w, "entries: %d, %d tombstones, %d shadowed, %d with an end; %d bytes before compression\n", i.Entries, i.Tombstones, i.Shadowed, i.Ends, i.RawBytes)
	fmt.Fprintf(w, "sequence numbers: %d to %d\n", i.MinSeq, i.MaxSeq)
	fmt.Fprintf(w, "timestamps: %d to %d\n", i.MinTS, i.MaxTS)
	for _, f := range i.Families {
		fmt.Fprintf(w, "family f%d: %d cells, %d bytes, timestamps %d to %d\n", f.ID, f.Cells, f.Bytes, f.MinTS, f.MaxTS)
		for n, cells := range f.Older {
			fmt.Fprintf(w, "  with %d newer cells or more: %d\n", olderThan(n), cells)
		}
	}
	if i.FilterColumns {
		fmt.Fprintln(w, "filter has columns, too")
	}
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
