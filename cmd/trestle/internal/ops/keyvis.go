package ops

import (
	"context"
	"encoding/json"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/keyvis"
)

// A HeatReader returns heat maps: keyvis.History.Read, or a call of a server that has one.
type HeatReader func(ctx context.Context, q keyvis.Query) (*keyvis.Matrix, error)

// ShowHeat makes the service answer with what read returns.
func (a *Admin) ShowHeat(read HeatReader) { a.heat.Store(&read) }

// HeatQuestion asks Answer for a heat map, as AskHeat does.
const HeatQuestion = "heat"

// answerHeat answers a keyvis.Query with a keyvis.Matrix, both in JSON.
func answerHeat(ctx context.Context, read HeatReader, question []byte) ([]byte, error) {
	var q keyvis.Query
	if err := json.Unmarshal(question, &q); err != nil {
		return nil, fault.New(fault.Invalid, "decode the query of a heat map: %w", err)
	}
	m, err := read(ctx, q)
	if err != nil {
		return nil, err
	}
	return json.Marshal(m)
}

// AskHeat returns a HeatReader that has ask answer a HeatQuestion by Answer in another process.
func AskHeat(ask func(ctx context.Context, question []byte) ([]byte, error)) HeatReader {
	return func(ctx context.Context, q keyvis.Query) (*keyvis.Matrix, error) {
		question, err := json.Marshal(q)
		if err != nil {
			return nil, err
		}
		answer, err := ask(ctx, question)
		if err != nil {
			return nil, err
		}
		m := new(keyvis.Matrix)
		if err := json.Unmarshal(answer, m); err != nil {
			return nil, fault.New(fault.Internal, "decode a heat map: %w", err)
		}
		return m, nil
	}
}

// HeatMap is the answer of GET /admin/keyvis.
type HeatMap struct {
	Table  string `json:"table"`
	Metric string `json:"metric"`
	// Times are the starts of the columns, each StepSeconds long.
	Times       []time.Time `json:"times"`
	StepSeconds int64       `json:"step_seconds"`
	// Keys are the borders of the buckets, one more than these. The first and the last are
	// empty: the beginning and the end of the table.
	Keys [][]byte `json:"keys"`
	// Values has a value of each bucket for each column: a sum, or for "bytes" a mean. It is
	// null where nothing was recorded.
	Values   [][]int64     `json:"values"`
	Findings []HeatFinding `json:"findings"`
}

// A HeatFinding is a sentence about a HeatMap.
type HeatFinding struct {
	Kind     string    `json:"kind"`
	Severity string    `json:"severity"` // "warning" or "info"
	Text     string    `json:"text"`
	Key      []byte    `json:"key"`
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
}

// heatMap answers with the heat map of a table.
func (a *Admin) heatMap(q *request) (any, error) {
	v := q.URL.Query()
	if v.Get("table") == "" {
		return nil, fault.New(fault.Invalid, "table is missing: name the table of the heat map")
	}
	table, err := q.table(v.Get("table"))
	if err != nil {
		return nil, err
	}
	query := keyvis.Query{Table: table, Metric: keyvis.CPU}
	if name := v.Get("metric"); name != "" {
		if query.Metric, err = keyvis.ParseMetric(name); err != nil {
			return nil, err
		}
	}
	if query.From, err = timeOf(v.Get("from"), "from", query.From); err != nil {
		return nil, err
	}
	if query.To, err = timeOf(v.Get("to"), "to", query.To); err != nil {
		return nil, err
	}
	read := a.heat.Load()
	if read == nil {
		return nil, fault.New(fault.FailedPrecondition, "this server has no key visualizer: it records no load of tables")
	}
	m, err := (*read)(q.Context(), query)
	if err != nil {
		return nil, err
	}
	out := HeatMap{Table: m.Table, Metric: m.Metric.String(), Times: append([]time.Time{}, m.Times...), StepSeconds: int64(m.Step / time.Second), Keys: make([][]byte, len(m.Keys)),
		Values: append([][]int64{}, m.Values...), Findings: []HeatFinding{}}
	for i, k := range m.Keys {
		out.Keys[i] = append([]byte{}, k...) // "" and not null
	}
	for _, f := range m.Findings {
		out.Findings = append(out.Findings, HeatFinding{string(f.Kind), f.Severity, f.Text, append([]byte{}, f.Key...), f.From, f.To})
	}
	return out, nil
}
