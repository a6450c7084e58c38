package feed

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
)

// A Line is one record in the form of its JSON.
type Line struct {
	Table      string     `json:"table"`
	Row        Bytes      `json:"row"`
	Type       string     `json:"type"` // USER or GARBAGE_COLLECTION
	Cluster    string     `json:"cluster,omitempty"`
	Commit     time.Time  `json:"commit"`
	Tiebreaker int32      `json:"tiebreaker"`
	Mutations  []Mutation `json:"mutations"`
}

// A Mutation is one change of a Line. Op is SetCell, DeleteFromColumn,
// DeleteFromFamily, AddToCell or MergeToCell.
type Mutation struct {
	Op        string `json:"op"`
	Family    string `json:"family"`
	Qualifier *Bytes `json:"qualifier,omitempty"`
	Timestamp *int64 `json:"timestamp_micros,omitempty"`
	Value     *Bytes `json:"value,omitempty"`
	Int       *int64 `json:"int,omitempty"`   // the input of AddToCell or MergeToCell, if it is a number
	Start     int64  `json:"start,omitempty"` // of DeleteFromColumn; 0: open
	End       int64  `json:"end,omitempty"`
}

// Bytes are a JSON string if they are UTF-8, else {"base64": "…"}.
type Bytes []byte

// MarshalJSON implements json.Marshaler.
func (b Bytes) MarshalJSON() ([]byte, error) {
	if utf8.Valid(b) {
		return json.Marshal(string(b))
	}
	return json.Marshal(map[string]string{"base64": base64.StdEncoding.EncodeToString(b)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (b *Bytes) UnmarshalJSON(in []byte) error {
	var s string
	if json.Unmarshal(in, &s) == nil {
		*b = []byte(s)
		return nil
	}
	var m map[string][]byte
	err := json.Unmarshal(in, &m)
	*b = m["base64"]
	return err
}

// A merger puts a record together of its messages.
type merger struct {
	line  Line
	open  bool
	value *Bytes // that goes on in the next message
}

// add takes a message; done says that the record is complete.
func (m *merger) add(d *bigtablepb.ReadChangeStreamResponse_DataChange) (done bool, err error) {
	if !m.open {
		m.line = Line{Table: m.line.Table, Row: d.GetRowKey(), Type: d.GetType().String(), Cluster: d.GetSourceClusterId(), Commit: d.GetCommitTimestamp().AsTime(), Tiebreaker: d.GetTiebreaker()}
		m.open = true
	}
	for _, c := range d.GetChunks() {
		mut, info := c.GetMutation(), c.GetChunkInfo()
		if m.value != nil {
			set := mut.GetSetCell()
			if set == nil {
				return false, errors.New("a value does not go on")
			}
			*m.value = append(*m.value, set.GetValue()...)
		} else {
			out, err := mutationOf(mut)
			if err != nil {
				return false, err
			}
			m.line.Mutations = append(m.line.Mutations, out)
			m.value = out.Value
		}
		if info == nil || info.GetLastChunk() {
			m.value = nil
		}
	}
	m.open = !d.GetDone()
	return d.GetDone(), nil
}

func mutationOf(m *bigtablepb.Mutation) (Mutation, error) {
	bytes := func(b []byte) *Bytes { c := Bytes(b); return &c }
	aggregate := func(op, family string, q, ts, in *bigtablepb.Value) Mutation {
		t := ts.GetRawTimestampMicros()
		out := Mutation{Op: op, Family: family, Qualifier: bytes(q.GetRawValue()), Timestamp: &t}
		switch v := in.GetKind().(type) {
		case *bigtablepb.Value_IntValue:
			out.Int = &v.IntValue
		case *bigtablepb.Value_RawValue:
			out.Value = bytes(v.RawValue)
		case *bigtablepb.Value_BytesValue:
			out.Value = bytes(v.BytesValue)
		case *bigtablepb.Value_StringValue:
			out.Value = bytes([]byte(v.StringValue))
		}
		return out
	}
	switch m := m.GetMutation().(type) {
	case *bigtablepb.Mutation_SetCell_:
		s := m.SetCell
		return Mutation{Op: "SetCell", Family: s.FamilyName, Qualifier: bytes(s.ColumnQualifier), Timestamp: &s.TimestampMicros, Value: bytes(s.Value)}, nil
	case *bigtablepb.Mutation_DeleteFromColumn_:
		d := m.DeleteFromColumn
		return Mutation{Op: "DeleteFromColumn", Family: d.FamilyName, Qualifier: bytes(d.ColumnQualifier),
			Start: d.GetTimeRange().GetStartTimestampMicros(), End: d.GetTimeRange().GetEndTimestampMicros()}, nil
	case *bigtablepb.Mutation_DeleteFromFamily_:
		return Mutation{Op: "DeleteFromFamily", Family: m.DeleteFromFamily.FamilyName}, nil
	case *bigtablepb.Mutation_AddToCell_:
		a := m.AddToCell
		return aggregate("AddToCell", a.FamilyName, a.ColumnQualifier, a.Timestamp, a.Input), nil
	case *bigtablepb.Mutation_MergeToCell_:
		a := m.MergeToCell
		return aggregate("MergeToCell", a.FamilyName, a.ColumnQualifier, a.Timestamp, a.Input), nil
	}
	return Mutation{}, errors.New("a mutation of an unknown kind")
}
