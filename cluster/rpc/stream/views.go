package stream

import (
	"context"
	"encoding/binary"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/matview"
)

func appendViewRows(b []byte, rows []rpc.ViewRow) []byte {
	b = binary.AppendUvarint(b, uint64(len(rows)))
	for i := range rows {
		r := &rows[i]
		b = binary.AppendUvarint(appendBytes(b, r.Key), uint64(len(r.Updates)))
		for k := range r.Updates {
			u := &r.Updates[k]
			b = appendBytes(binary.AppendUvarint(binary.AppendUvarint(b, u.Shard), u.Seq), u.Payload)
		}
	}
	return b
}

// viewRows decodes what appendViewRows wrote; what it returns aliases the message.
func (d *decoder) viewRows() []rpc.ViewRow {
	n := d.Count()
	rows := make([]rpc.ViewRow, 0, room(n))
	for range n {
		r := rpc.ViewRow{Key: d.bytes()}
		m := d.Count()
		r.Updates = make([]matview.Update, 0, room(m))
		for range m {
			u := matview.Update{Shard: d.Uvarint(), Seq: d.Uvarint(), Payload: d.bytes()}
			if d.Bad() {
				return nil
			}
			r.Updates = append(r.Updates, u)
		}
		if d.Bad() {
			return nil
		}
		rows = append(rows, r)
	}
	return rows
}

// ApplyView implements rpc.Data.
func (p *peer) ApplyView(ctx context.Context, at rpc.Target, rows []rpc.ViewRow) error {
	_, err := p.change(ctx, opApplyView, appendViewRows(appendTarget(batches.empty(), at), rows))
	return err
}
