package compaction

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

// TestGroups: each locality group keeps the promises of Pick, whatever is
// flushed to the others, and the one with too many runs comes first.
func TestGroups(t *testing.T) {
	o := Options{SmallFile: 1}.WithDefaults()
	r := rand.New(rand.NewPCG(1, 2))
	sims := []*sim{newSim(t, o), newSim(t, o), newSim(t, o)}
	for range 200 {
		for i, s := range sims {
			if r.IntN(i+1) > 0 { // not every flush has something of every group
				continue
			}
			s.flush(random(r, 16, 10_000), nil)
		}
		for {
			groups := make([]Group, len(sims))
			for i, s := range sims {
				groups[i].Runs = s.runs
			}
			before := fmt.Sprint(groups)
			at, job, ok := PickGroup(groups, o)
			if fmt.Sprint(groups) != before {
				t.Fatal("picking changes its arguments")
			}
			if !ok {
				break
			}
			for i, s := range sims {
				if len(s.runs) > o.MaxRuns && len(s.runs) > len(sims[at].runs) {
					t.Errorf("group %d with %d runs is compacted before group %d with %d", at, len(sims[at].runs), i, len(s.runs))
				}
			}
			sims[at].run(job)
		}
		for i, s := range sims {
			if len(s.runs) > o.MaxRuns {
				t.Fatalf("group %d is left with %d runs", i, len(s.runs))
			}
		}
	}
	for _, s := range sims {
		s.verify()
	}
}

// TestGroupsForced: what is asked of one group is not done to another.
func TestGroupsForced(t *testing.T) {
	now := time.Unix(1000, 0)
	file := func(id uint64) File {
		return File{ID: id, Lo: rowPrefix(1), Hi: rowPrefix(2), Bytes: 1 << 20, Entries: 10, Tombstones: 1}
	}
	groups := []Group{{Runs: []Run{{ID: 1, Files: []File{file(1)}}}, LastMajor: now}, {Runs: []Run{{ID: 2, Files: []File{file(2)}}}, LastMajor: now}}
	if at, job, ok := PickGroup(groups, Options{Now: now}); ok {
		t.Errorf("group %d: %+v", at, job)
	}
	groups[1].Force = true
	if at, job, ok := PickGroup(groups, Options{Now: now}); !ok || at != 1 || job.Kind != Major {
		t.Errorf("group %d: %+v, %v", at, job, ok)
	}
	groups[1].Force, groups[0].LastMajor = false, now.Add(-48*time.Hour)
	if at, job, ok := PickGroup(groups, Options{Now: now}); !ok || at != 0 || job.Kind != Major {
		t.Errorf("group %d: %+v, %v", at, job, ok)
	}
}

// TestRelayout: all runs, each file of them rewritten, every part complete.
func TestRelayout(t *testing.T) {
	var runs []Run
	for i := range uint64(5) {
		runs = append(runs, Run{ID: 5 - i, Files: []File{
			{ID: 10 + i, Lo: rowPrefix(uint32(i)), Hi: rowPrefix(uint32(i + 1)), Bytes: 1},
			{ID: 20 + i, Lo: rowPrefix(uint32(100 + 10*i)), Hi: rowPrefix(uint32(101 + 10*i)), Bytes: 1},
		}})
	}
	before := fmt.Sprint(runs)
	j := Relayout(runs, Options{})
	if fmt.Sprint(runs) != before {
		t.Error("it changes its arguments")
	}
	if j.Kind != Major || !reflect.DeepEqual(j.Runs, []uint64{5, 4, 3, 2, 1}) {
		t.Errorf("%+v", j)
	}
	files := map[uint64]bool{}
	for _, p := range j.Parts {
		if p.Move || !p.Complete {
			t.Errorf("part %+v", p)
		}
		for _, in := range p.Inputs {
			for _, f := range in.Files {
				files[f.ID] = true
			}
		}
	}
	if len(files) != 10 {
		t.Errorf("%d files of 10", len(files))
	}
}

// TestMajorAfterAWrongClock: a time of the last major compaction that is far ahead, as the clock
// was set forward then, keeps no garbage. One that is ahead as clocks of two machines differ
// counts as now.
func TestMajorAfterAWrongClock(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for _, c := range []struct {
		ahead time.Duration
		due   bool
	}{{365 * 24 * time.Hour, true}, {time.Minute, false}, {0, false}, {-25 * time.Hour, true}} {
		runs := []Run{{ID: 1, Files: []File{{ID: 1, Lo: []byte("a"), Hi: []byte("b"), Bytes: 1 << 30, Entries: 1000, Garbage: 1 << 20}}}}
		_, job, ok := PickGroup([]Group{{Runs: runs, LastMajor: now.Add(c.ahead)}}, Options{Now: now})
		if ok != c.due || ok && (job.Kind != Major || job.Reason != "age") {
			t.Errorf("%v ahead: %t, %+v", c.ahead, ok, job)
		}
	}
}
