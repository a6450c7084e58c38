package master

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/metadata"
)

func spread(servers []uint64, tablets []weighed) map[uint64]float64 {
	have := map[uint64]float64{}
	for _, t := range tablets {
		have[t.server] += t.weight
	}
	return have
}

// apply carries moves out.
func apply(tablets []weighed, moves []move) {
	for _, m := range moves {
		for i := range tablets {
			if tablets[i].id == m.tablet && tablets[i].server == m.from {
				tablets[i].server = m.to
			}
		}
	}
}

func TestPlanEvensOut(t *testing.T) {
	servers := []uint64{1, 2, 3}
	var tablets []weighed
	for i := range 60 {
		tablets = append(tablets, weighed{id: metadata.TabletID(i), server: 1, weight: float64(1+i%5) / 180})
	}
	rounds := 0
	for ; rounds < 100; rounds++ {
		moves := plan(servers, tablets, 8)
		if len(moves) == 0 {
			break
		}
		if len(moves) > 8 {
			t.Fatalf("%d moves at once", len(moves))
		}
		apply(tablets, moves)
	}
	for s, w := range spread(servers, tablets) {
		if w < 0.9/3 || w > 1.1/3 {
			t.Errorf("server %d has %.3f of the weight", s, w)
		}
	}
	if rounds > 6 {
		t.Errorf("it took %d rounds", rounds)
	}
}

// A tablet that makes up what a server has too much of is not moved to and fro,
// nor is anything while servers are about even, nor what is to stay.
func TestPlanLeavesAlone(t *testing.T) {
	servers := []uint64{1, 2}
	for name, tablets := range map[string][]weighed{
		"one heavy tablet": {{1, 1, 0.9, false}, {2, 2, 0.1, false}},
		"about even":       {{1, 1, 0.30, false}, {2, 1, 0.24, false}, {3, 2, 0.46, false}},
		"fixed":            {{1, 1, 0.5, true}, {2, 1, 0.4, true}, {3, 2, 0.1, false}},
		"one of three":     {{1, 1, 1. / 3, false}, {2, 1, 1. / 3, false}, {3, 2, 1. / 3, false}},
	} {
		if moves := plan(servers, tablets, 8); len(moves) > 0 {
			t.Errorf("%s: %v", name, moves)
		}
	}
	if moves := plan(servers[:1], []weighed{{1, 1, 1, false}}, 8); len(moves) > 0 {
		t.Errorf("moved %v to the only server", moves)
	}
}

func TestWeigh(t *testing.T) {
	got := weigh(map[uint64]*rpc.Status{
		1: {Tablets: []rpc.TabletStatus{{Tablet: 1, Bytes: 300, CPU: 0.1}, {Tablet: 2}}},
		2: {Tablets: []rpc.TabletStatus{{Tablet: 3, Bytes: 100}, {Tablet: 4, CPU: 0.1}}},
	}, func(s rpc.TabletStatus) bool { return s.Tablet == 2 })
	var sum float64
	for _, w := range got {
		sum += w.weight
		if w.fixed != (w.id == 2) {
			t.Errorf("tablet %d is fixed: %v", w.id, w.fixed)
		}
	}
	if len(got) != 4 || sum < 0.999 || sum > 1.001 || got[0].weight < 0.49 || got[0].weight > 0.51 {
		t.Errorf("weights are %v, together %v", got, sum)
	}
}

// TestPairs: of neighbours that fit, each tablet is in one pair at most; tablets
// of different tables, or with a gap between them, are no neighbours.
func TestPairs(t *testing.T) {
	row := func(table, id uint64, start, end string) *tabletHint {
		return &tabletHint{Table: table, Tablet: metadata.TabletID(id), Start: []byte(start), End: []byte(end)}
	}
	rows := []*tabletHint{row(2, 1, "", "c"), row(2, 2, "c", "f"), row(2, 3, "f", "k"), row(2, 4, "m", ""), row(3, 5, "", "a"), row(3, 6, "a", ""), row(4, 7, "", "")}
	all := func(_, _ *tabletHint) bool { return true }
	if got, want := pairs(rows, all, 8), []pair{{1, 2}, {5, 6}}; !slices.Equal(got, want) {
		t.Errorf("pairs are %v, want %v", got, want)
	}
	if got := pairs(rows, all, 1); len(got) != 1 {
		t.Errorf("%v is more than one", got)
	}
	got := pairs(rows, func(l, _ *tabletHint) bool { return l.Tablet != 1 }, 8)
	if want := []pair{{2, 3}, {5, 6}}; !slices.Equal(got, want) {
		t.Errorf("pairs are %v, want %v", got, want)
	}
}

// TestColdStart: while servers come one after the other, the first of them do
// not get everything; they do not wait for long, nor when few tablets have no
// server.
func TestColdStart(t *testing.T) {
	now := time.Unix(1000, 0)
	servers := map[uint64]catalog.Registration{}
	var c coldStart
	most := func(after time.Duration, without int) int {
		now = now.Add(after)
		return c.most(servers, without, 1000, time.Second, now)
	}
	come := func(n uint64) { servers[n] = catalog.Registration{} }
	come(1)
	if got := most(0, 1000); got != firstTablets {
		t.Errorf("the first server may have %d tablets", got)
	}
	come(2)
	if got := most(900*time.Millisecond, 936); got != firstTablets {
		t.Errorf("servers may have %d tablets while others come", got)
	}
	if got := most(900*time.Millisecond, 400); got != firstTablets {
		t.Errorf("servers may have %d tablets when most have a server and others may come", got)
	}
	if got := most(100*time.Millisecond, 400); got != math.MaxInt {
		t.Errorf("servers may have %d tablets when no more come", got)
	}
	most(0, 0)
	come(3)
	if got := most(time.Second, 300); got != math.MaxInt {
		t.Errorf("servers may have %d tablets when one of them has died", got)
	}
	most(0, 0)
	// One that comes again and again.
	for n := uint64(4); ; n++ {
		delete(servers, n-1)
		come(n)
		if got := most(500*time.Millisecond, 1000); got == math.MaxInt {
			break
		}
		if n == 30 {
			t.Fatal("tablets wait for ever")
		}
	}
}
