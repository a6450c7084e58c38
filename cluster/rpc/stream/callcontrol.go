package stream

import (
	"context"
	"encoding/json"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/metadata"
)

var _ rpc.Dialer = (*Dialer)(nil)

var _ rpc.TabletServer = (*peer)(nil)

// A control is a call of rpc.Control, which is rare: it travels as JSON.
type control struct {
	Call        string
	Keys        []rpc.TabletKey     `json:",omitempty"`
	Tablets     []metadata.TabletID `json:",omitempty"`
	At          []byte              `json:",omitempty"`
	Left, Right metadata.TabletID   `json:",omitempty"`
	Number      uint64              `json:",omitempty"`
	Hold        time.Duration       `json:",omitempty"`
	Objects     []string            `json:",omitempty"`
	Table       uint64              `json:",omitempty"`
	Epoch       int64               `json:",omitempty"`
	// Packed says that the caller of Describe reads appendDetails, Plain that it wants no
	// locality groups.
	Packed, Plain bool `json:",omitempty"`
}

func (p *peer) control(ctx context.Context, c *control, out any) error {
	answer, err := p.askControl(ctx, c)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fault.New(fault.Internal, "answer of tablet server %s: %w", p.addr, err)
	}
	return nil
}

// askControl makes a call and returns the answer as it came.
func (p *peer) askControl(ctx context.Context, c *control) ([]byte, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	p.d.Forwarded.Add(1)
	if p.inline != nil {
		answer, err := p.inline.answerInline(ctx, opControl, body)
		return answer.Rest(), err
	}
	l, err := p.get(ctx)
	if err != nil {
		return nil, err
	}
	l.acquire()
	defer l.release()
	answer, err := p.askUnary(ctx, l, opControl, body, false)
	return answer.Rest(), err
}

// Load implements rpc.Control.
func (p *peer) Load(ctx context.Context, keys []rpc.TabletKey) error {
	return p.control(ctx, &control{Call: "Load", Keys: keys}, nil)
}

// Unload implements rpc.Control.
func (p *peer) Unload(ctx context.Context, tablets []metadata.TabletID) error {
	return p.control(ctx, &control{Call: "Unload", Tablets: tablets}, nil)
}

// Split implements rpc.Control.
func (p *peer) Split(ctx context.Context, tablet metadata.TabletID, at []byte) error {
	return p.control(ctx, &control{Call: "Split", Left: tablet, At: at}, nil)
}

// Merge implements rpc.Control.
func (p *peer) Merge(ctx context.Context, left, right metadata.TabletID) error {
	return p.control(ctx, &control{Call: "Merge", Left: left, Right: right}, nil)
}

// Flush implements rpc.Control.
func (p *peer) Flush(ctx context.Context, tablets []metadata.TabletID) error {
	return p.control(ctx, &control{Call: "Flush", Tablets: tablets}, nil)
}

// Compact implements rpc.Control.
func (p *peer) Compact(ctx context.Context, tablets []metadata.TabletID) error {
	return p.control(ctx, &control{Call: "Compact", Tablets: tablets}, nil)
}

// Pause implements rpc.Control.
func (p *peer) Pause(ctx context.Context, number uint64, tablets []metadata.TabletID, hold time.Duration) error {
	return p.control(ctx, &control{Call: "Pause", Number: number, Tablets: tablets, Hold: hold}, nil)
}

// Cut implements rpc.Control.
func (p *peer) Cut(ctx context.Context, number uint64) (rows []*metadata.Row, err error) {
	return rows, p.control(ctx, &control{Call: "Cut", Number: number}, &rows)
}

// Resume implements rpc.Control.
func (p *peer) Resume(ctx context.Context, number uint64) error {
	return p.control(ctx, &control{Call: "Resume", Number: number}, nil)
}

// Needed implements rpc.Control.
func (p *peer) Needed(ctx context.Context, objects []string) (used []string, err error) {
	return used, p.control(ctx, &control{Call: "Needed", Objects: objects}, &used)
}

// Attend implements rpc.Control.
func (p *peer) Attend(ctx context.Context, incarnation uint64, epoch int64, echo time.Duration) (reading time.Duration, err error) {
	err = p.control(ctx, &control{Call: "Attend", Number: incarnation, Epoch: epoch, Hold: echo}, &reading)
	return reading, err
}

// Status implements rpc.Control.
func (p *peer) Status(ctx context.Context) (*rpc.Status, error) {
	st := new(rpc.Status)
	return st, p.control(ctx, &control{Call: "Status"}, st)
}

// A splitKey is the answer of SplitKey.
type splitKey struct {
	Key []byte
	OK  bool
}

// SplitKey implements rpc.Operate.
func (p *peer) SplitKey(ctx context.Context, tablet metadata.TabletID) ([]byte, bool, error) {
	var k splitKey
	err := p.control(ctx, &control{Call: "SplitKey", Left: tablet}, &k)
	return k.Key, k.OK, err
}

// Cuts implements rpc.Operate.
func (p *peer) Cuts(ctx context.Context, tablet metadata.TabletID) (out [][]byte, err error) {
	err = p.control(ctx, &control{Call: "Cuts", Left: tablet}, &out)
	return out, err
}

// Verify implements rpc.Operate.
func (p *peer) Verify(ctx context.Context, tablet metadata.TabletID) (out []rpc.Verified, err error) {
	err = p.control(ctx, &control{Call: "Verify", Left: tablet}, &out)
	return out, err
}

// Ask implements rpc.Operate.
func (p *peer) Ask(ctx context.Context, what string, question []byte) (out []byte, err error) {
	err = p.control(ctx, &control{Call: "Ask", Objects: []string{what}, At: question}, &out)
	return out, err
}

// DropDamaged implements rpc.Operate.
func (p *peer) DropDamaged(ctx context.Context, tablet metadata.TabletID, object string) (*rpc.Loss, error) {
	l := new(rpc.Loss)
	return l, p.control(ctx, &control{Call: "DropDamaged", Left: tablet, Objects: []string{object}}, l)
}
