package exec

import (
	"encoding/binary"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/varint"
)

// resultType returns the type of what the function of c returns.
func resultType(c *algebra.AggregateCall) *types.Type {
	if c.Deferred {
		return c.Column.Type.Fields[0].Type
	}
	return c.Column.Type
}

// deferredState gives out STRUCTs of functions.DeferredType: the values of the
// state below it, or for groups in which a row failed the error.
type deferredState struct {
	aggState
	failed map[int]string
	values *types.Vector
}

func newDeferredState(below aggState, t *types.Type) *deferredState {
	return &deferredState{aggState: below, failed: map[int]string{}, values: &types.Vector{Type: t}}
}

// fail notes the error of a group; the first one counts.
func (s *deferredState) fail(group int, message string) {
	if s.failed[group] == "" {
		s.failed[group] = message
	}
}

func (s *deferredState) results(first int, out *types.Vector, n int) error {
	out.Resize(n)
	s.values.Resize(n)
	err := s.aggState.results(first, s.values, n)
	if err != nil && !isRowError(err) {
		return err
	}
	one := &types.Vector{Type: s.values.Type}
	for k := range n {
		message := s.failed[first+k]
		v := types.Null
		switch {
		case message != "":
		case err == nil:
			v = s.values.Value(k)
		default: // some group fails: which?
			one.Resize(1)
			if err := s.aggState.results(first+k, one, 1); err == nil {
				v = one.Value(0).Clone()
			} else if message = err.Error(); !isRowError(err) {
				return err
			}
		}
		text := types.Null
		if message != "" {
			text = types.NewString(message)
		}
		out.Set(k, types.NewList([]types.Value{v, text}))
	}
	return nil
}

func (s *deferredState) appendState(group int, dst []byte) []byte {
	return s.aggState.appendState(group, appendMessage(dst, s.failed[group]))
}

func (s *deferredState) merge(group int, state []byte) error {
	message, state, err := cutMessage(state)
	if err != nil {
		return err
	}
	if message != "" {
		s.fail(group, message)
	}
	if err := s.aggState.merge(group, state); err != nil {
		if !isRowError(err) {
			return err
		}
		s.fail(group, err.Error())
	}
	return nil
}

func (s *deferredState) size() int64 {
	size := s.aggState.size()
	for _, message := range s.failed {
		size += 48 + int64(len(message))
	}
	return size
}

// appendMessage appends the error of a group, "" for none, to its state.
func appendMessage(dst []byte, message string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(message))), message...)
}

// cutMessage returns what appendMessage appended, and what follows it.
func cutMessage(state []byte) (message string, rest []byte, err error) {
	d := varint.Of(state)
	message = string(d.Bytes())
	if d.Bad() {
		return "", nil, errDamaged("a state ends early")
	}
	return message, d.Rest(), nil
}
