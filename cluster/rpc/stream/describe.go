package stream

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

// detailsVersion begins an answer to Describe that is not JSON, which begins otherwise. There
// may be 100,000 tablets in one, and JSON takes twenty times as long to decode.
const detailsVersion = 1

// Describe implements rpc.Operate. A server of an earlier version answers in JSON.
func (p *peer) Describe(ctx context.Context, table uint64, groups bool) ([]rpc.TabletDetail, error) {
	answer, err := p.askControl(ctx, &control{Call: "Describe", Table: table, Packed: true, Plain: !groups})
	if err != nil {
		return nil, err
	}
	out, err := detailsOf(answer)
	if err != nil {
		return nil, fault.New(fault.Internal, "answer of tablet server %s: %w", p.addr, err)
	}
	return out, nil
}

// Sum implements rpc.Operate.
func (p *peer) Sum(ctx context.Context, table uint64) (*rpc.TabletSum, error) {
	sum := new(rpc.TabletSum)
	return sum, p.control(ctx, &control{Call: "Sum", Table: table}, sum)
}

// minDetail is less than a description takes: five float64.
const minDetail = 40

func detailsOf(answer []byte) (out []rpc.TabletDetail, err error) {
	if len(answer) == 0 || answer[0] != detailsVersion {
		err = json.Unmarshal(answer, &out)
		return out, err
	}
	d := decoderOf(answer[1:])
	n := d.Count()
	out = make([]rpc.TabletDetail, 0, min(n, len(answer)/minDetail))
	for range n {
		// What a later version adds comes last, and is left alone.
		one := decoderOf(d.bytes())
		out = append(out, rpc.TabletDetail{})
		one.detail(&out[len(out)-1])
		if one.Bad() {
			d.Fail()
			break
		}
	}
	return out, d.err()
}

func appendDetails(b []byte, details []rpc.TabletDetail) []byte {
	b = binary.AppendUvarint(append(b, detailsVersion), uint64(len(details)))
	var one []byte
	for i := range details {
		one = appendDetail(one[:0], &details[i])
		b = appendBytes(b, one)
	}
	return b
}

func appendDetail(b []byte, t *rpc.TabletDetail) []byte {
	for _, n := range [...]uint64{uint64(t.Tablet), t.Table, t.Epoch} {
		b = binary.AppendUvarint(b, n)
	}
	b = appendBytes(appendBytes(b, t.Start), t.End)
	for _, n := range [...]int64{t.Bytes, int64(t.Runs), t.MemtableBytes, int64(t.Files), t.Done, t.Total} {
		b = binary.AppendVarint(b, n)
	}
	for _, f := range [...]float64{t.Reads, t.Writes, t.CPU, t.ReadCalls, t.BytesRate} {
		b = binary.BigEndian.AppendUint64(b, math.Float64bits(f))
	}
	b = appendString(appendTime(appendTime(b, t.Since), t.LastMajor), t.Redo)
	b = binary.AppendUvarint(b, uint64(len(t.Groups)))
	for id, g := range t.Groups {
		b = appendGroup(binary.AppendUvarint(b, uint64(id)), g)
	}
	b = appendGroup(b, t.Earlier)
	if t.Kept == nil {
		return append(b, 0)
	}
	b = binary.AppendVarint(binary.AppendVarint(append(b, 1), int64(t.Kept.Files)), t.Kept.Bytes)
	return appendTime(appendTime(b, t.Kept.Since), t.Kept.Newest)
}

func (d *decoder) detail(t *rpc.TabletDetail) {
	t.Tablet, t.Table, t.Epoch = metadata.TabletID(d.Uvarint()), d.Uvarint(), d.Uvarint()
	t.Start, t.End = d.bytes(), d.bytes()
	t.Bytes, t.Runs, t.MemtableBytes, t.Files, t.Done, t.Total = d.Varint(), int(d.Varint()), d.Varint(), int(d.Varint()), d.Varint(), d.Varint()
	t.Reads, t.Writes, t.CPU, t.ReadCalls, t.BytesRate = d.float(), d.float(), d.float(), d.float(), d.float()
	t.Since, t.LastMajor, t.Redo = d.time(), d.utc(), d.string()
	if n := d.Count(); n > 0 {
		t.Groups = make(map[uint16]rpc.GroupState, room(n))
		for range n {
			id := uint16(d.UvarintMax(math.MaxUint16))
			t.Groups[id] = d.group()
		}
	}
	t.Earlier = d.group()
	if d.Byte() != 0 {
		t.Kept = &rpc.Kept{Files: int(d.Varint()), Bytes: d.Varint(), Since: d.utc(), Newest: d.utc()}
	}
}

func appendGroup(b []byte, g rpc.GroupState) []byte {
	for _, n := range [...]int64{g.Bytes, g.Resident, int64(g.Runs), int64(g.Files)} {
		b = binary.AppendVarint(b, n)
	}
	return b
}

func (d *decoder) group() rpc.GroupState {
	return rpc.GroupState{Bytes: d.Varint(), Resident: d.Varint(), Runs: int(d.Varint()), Files: int(d.Varint())}
}

// utc is time of a time that operators are shown.
func (d *decoder) utc() time.Time {
	if t := d.time(); !t.IsZero() {
		return t.UTC()
	}
	return time.Time{}
}
