package changes

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/trestledb/trestle/engine/cell"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/stamp"
)

var opNames = map[Op]string{SetCell: "set", DeleteColumn: "delete column", DeleteFamily: "delete family", DeleteRow: "delete row", AddToCell: "add", MergeToCell: "merge"}

// Dump writes a change file as text: its size and times, then its records, chunk by chunk.
// What could be read is written also if it returns an error.
func Dump(ctx context.Context, w io.Writer, f Readable, name string) error {
	c, err := Open(ctx, f, name)
	if err != nil {
		return err
	}
	info := c.Info()
	at := func(s cell.Seq) string { return stamp.Time(s).Format(time.RFC3339Nano) }
	fmt.Fprintf(w, "%s: %d records in %d chunks, %d bytes, %d before compression, committed %s to %s\n",
		name, info.Records, len(c.chunks), info.Bytes, info.RawBytes, at(info.Lo), at(info.Hi))
	var chunk cell.Seq
	src := Source{Lo: info.Lo, Hi: info.Hi, Open: func(context.Context) (*File, error) { return c, nil }}
	_, err = Iterate(ctx, []Source{src}, Position{}, cell.MaxSeq, row.Range{}, func(r *Record) (bool, error) {
		if r.ChunkEnd != chunk {
			chunk = r.ChunkEnd
			fmt.Fprintf(w, "chunk up to %s\n", at(chunk))
		}
		why := ""
		if r.Collected {
			why = " collected"
		}
		if len(r.Changes) == 0 {
			why += ", for views"
		}
		fmt.Fprintf(w, "  \"%s\" %d %s%s\n", row.Escape(r.Key), r.Stamp, at(r.Stamp), why)
		for i := range r.Changes {
			d := &r.Changes[i]
			fmt.Fprintf(w, "    %s", opNames[d.Op])
			if d.Op != DeleteRow {
				fmt.Fprintf(w, " family %d", d.Family)
			}
			switch d.Op {
			case DeleteColumn:
				fmt.Fprintf(w, " \"%s\" from %d to %d", row.Escape(d.Qualifier), d.Times.Start, d.Times.End)
			case SetCell, AddToCell, MergeToCell:
				fmt.Fprintf(w, " \"%s\" @%d %d bytes", row.Escape(d.Qualifier), d.Timestamp, len(d.Value))
			}
			fmt.Fprintln(w)
		}
		return true, nil
	})
	return err
}
