package ops

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/keyvis"
	measured "github.com/trestledb/trestle/engine/request"
)

// TestHeatOfAnotherProcess: what another process answers is what it has.
func TestHeatOfAnotherProcess(t *testing.T) {
	want := &keyvis.Matrix{Table: "t", Metric: keyvis.RowsRead, Step: time.Minute, Times: []time.Time{time.Unix(60, 0).UTC(), time.Unix(120, 0).UTC()},
		Keys: [][]byte{{}, {0, 255}, {}}, Values: [][]int64{{1, 2}, nil}, Findings: []keyvis.Finding{{Kind: keyvis.HotRow, Key: []byte{1}}}}
	read := AskHeat(func(ctx context.Context, question []byte) ([]byte, error) {
		return answerHeat(ctx, func(_ context.Context, q keyvis.Query) (*keyvis.Matrix, error) {
			if q.Table != "t" || q.Metric != keyvis.RowsRead || !q.From.Equal(time.Unix(60, 0)) {
				return nil, fault.New(fault.Invalid, "asked for %+v", q)
			}
			return want, nil
		}, question)
	})
	got, err := read(t.Context(), keyvis.Query{Table: "t", Metric: keyvis.RowsRead, From: time.Unix(60, 0)})
	if err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(got)
	b, _ := json.Marshal(want)
	if !bytes.Equal(a, b) || got.Values[1] != nil {
		t.Errorf("got %s\nwant %s", a, b)
	}
	if _, err := answerHeat(t.Context(), read, []byte("{")); fault.KindOf(err) != fault.Invalid {
		t.Errorf("no JSON: %v", err)
	}
}

// TestHistory: a minute's requests and latencies are a point of their series.
func TestHistory(t *testing.T) {
	m := NewMetrics()
	h := NewHistory(m)
	begin := time.Now().Truncate(time.Second)
	h.record(begin)
	for range 120 {
		r := &measured.Record{Method: "/google.bigtable.v2.Bigtable/MutateRow"}
		m.RPCStarted(r)
		m.RPCDone(r, codes.OK, 2*time.Millisecond, 10, 20)
	}
	h.record(begin.Add(time.Minute))
	got := h.read([]string{"requests", "latency"}, begin, begin.Add(time.Hour))
	want := map[string]float64{"requests": 2, "latency0.5": 0.00175, "latency0.99": 0.00249}
	for _, s := range got.Series {
		name := s.Name + s.Labels["quantile"]
		if len(s.Points) != 1 || s.Points[0][0] != float64(begin.Add(time.Minute).Unix()) || math.Abs(s.Points[0][1]-want[name]) > want[name]/50 || s.Labels["method"] != "MutateRow" {
			t.Errorf("%s: %+v, want %v", name, s, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("there are no series %v", want)
	}
	// A day later nothing of it is left, and no more memory is taken.
	for i := range historyPoints {
		h.times[i] = 1
	}
	if got := h.read(nil, begin, begin.Add(time.Hour)); len(got.Series) == 0 || len(got.Series[0].Points) != 0 {
		t.Errorf("points of the last day: %+v", got)
	}
}

// TestAdminHeatParameters: bad parameters are named.
func TestAdminHeatParameters(t *testing.T) {
	for _, x := range []struct{ s, name, want string }{{"yesterday", "from", "from \"yesterday\" is no time"}, {"2026-01-02", "to", "to \"2026-01-02\""}} {
		if _, err := timeOf(x.s, x.name, time.Time{}); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v", x.s, err)
		}
	}
	if statusOf(fault.New(fault.Invalid, "x")) != http.StatusBadRequest {
		t.Error("what is wrong with a request is not 400")
	}
}

// TestProcess: a process tells of its certificates, and answers questions.
func TestProcess(t *testing.T) {
	a := NewAdmin()
	if _, err := a.Answer(t.Context(), askProcess, nil); fault.KindOf(err) != fault.Unimplemented {
		t.Errorf("a process that knows nothing of itself: %v", err)
	}
	a.ShowSelf(&Self{Name: "s", Settings: "a: b\n", Certificates: []string{"/nowhere.pem"}, Metrics: NewMetrics(), Health: new(Health)})
	b, err := a.Answer(t.Context(), askProcess, nil)
	var p Process
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil || p.Name != "s" || !p.Ready || len(p.Certificates) != 1 || p.Certificates[0].Error == "" || p.Version == "" {
		t.Errorf("%v %+v", err, p)
	}
	// What may name rows is told to who asks for it.
	h := new(Health)
	h.Set("commit log", func() error { return errors.New("row secret-1") })
	h.SetWarnings(func() []string { return []string{"rows [secret-2, )"} })
	a.ShowSelf(&Self{Name: "s", Settings: "a: b\n", Metrics: NewMetrics(), Health: h, Logs: func(keys bool) []byte { return fmt.Appendf(nil, "keys: %t", keys) }})
	for question, secrets := range map[string]int{`{}`: 0, `{"keys":true}`: 2} {
		b, err := a.Answer(t.Context(), askCollection, []byte(question))
		var c Collection
		if err == nil {
			err = json.Unmarshal(b, &c)
		}
		got := string(c.Files["process.json"])
		if n := strings.Count(got, "secret-"); err != nil || n != secrets || !strings.Contains(got, "[-] commit log") || string(c.Files["log.txt"]) != fmt.Sprintf("keys: %t", secrets > 0) {
			t.Errorf("%s: %v %s %s", question, err, got, c.Files["log.txt"])
		}
	}
	b, err = a.Answer(t.Context(), askCollection, []byte("{}"))
	var c Collection
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	for _, name := range []string{"settings.txt", "process.json", "metrics.txt", "stacks.txt", "heap.pprof"} {
		if len(c.Files[name]) == 0 {
			t.Errorf("%v: there is no %s", err, name)
		}
	}
	for _, bad := range []string{"process", "x"} {
		if _, err := a.Answer(t.Context(), "other", []byte(bad)); fault.KindOf(err) != fault.Unimplemented {
			t.Errorf("%v", err)
		}
	}
}
