package schema

import (
	"reflect"
	"testing"
	"time"
)

// TestStreamsOfATableWithViews: what is kept for views has one life for as long as there are
// views, and each stream that clients see another.
func TestStreamsOfATableWithViews(t *testing.T) {
	at := time.Unix(1e9, 1000).UTC()
	sch := &Table{Name: "t", Version: 4, Families: map[string]Family{}}
	next := func(change func()) {
		t.Helper()
		change()
		sch.Version++
		at = at.Add(time.Second)
		sch.KeepForViews(at)
		if got, err := Unmarshal(sch.Marshal()); err != nil || !reflect.DeepEqual(got.Stream, sch.Stream) {
			t.Errorf("%+v is read back as %+v, %v", sch.Stream, got, err)
		}
	}
	lives := map[uint64]bool{}
	enable := func() {
		t.Helper()
		now := at
		next(func() { sch.EnableStream(24*time.Hour, now) })
		life, since := sch.ChangeStream().ForClients()
		if lives[life] || life == 0 || !since.Equal(now) || sch.Stream.Retention != 24*time.Hour {
			t.Errorf("life %d, since %v: %+v after %v", life, since, sch.Stream, lives)
		}
		lives[life] = true
		next(func() { sch.EnableStream(48*time.Hour, at) })
		if again, same := sch.ChangeStream().ForClients(); again != life || !same.Equal(since) || sch.Stream.Retention != 48*time.Hour {
			t.Errorf("another retention makes life %d, since %v: %+v", again, same, sch.Stream)
		}
	}
	disable := func() {
		t.Helper()
		next(sch.DisableStream)
		if sch.ChangeStream() != nil {
			t.Errorf("clients see %+v", sch.Stream)
		}
	}
	enable()
	disable()
	if sch.Stream != nil {
		t.Errorf("%+v is kept for no view", sch.Stream)
	}
	enable()
	next(func() { sch.Views = []ViewOf{{Name: "v"}} })
	kept := *sch.Stream
	same := func() {
		t.Helper()
		if s := sch.Stream; s == nil || s.Life != kept.Life || !s.Since.Equal(kept.Since) {
			t.Errorf("%+v follows %+v", s, kept)
		}
	}
	for range 3 {
		disable()
		same()
		if sch.Stream.Retention != ViewRetention {
			t.Errorf("kept for %v", sch.Stream.Retention)
		}
		enable()
		same()
	}
	next(func() { sch.Views = nil })
	same()
	disable()
	if sch.Stream != nil {
		t.Errorf("%+v is kept for no view", sch.Stream)
	}
	next(func() { sch.Views = []ViewOf{{Name: "v"}} })
	if sch.Stream == nil || !sch.Stream.Hidden || lives[sch.Stream.Life] {
		t.Errorf("%+v is kept for a view", sch.Stream)
	}
	disable()
	next(func() { sch.Views = nil })
	if sch.Stream != nil {
		t.Errorf("%+v is kept for no view", sch.Stream)
	}
}

// TestViewLife: it grows with each life of the stream and with each family that is dropped, and
// with nothing else that is done to a table.
func TestViewLife(t *testing.T) {
	sch := &Table{Name: "t", Version: 4, Families: map[string]Family{}}
	if sch.ViewLife() != 0 {
		t.Errorf("%d without a stream", sch.ViewLife())
	}
	var last uint64
	for i, c := range []struct {
		grows  bool
		change func()
	}{
		{true, func() { sch.Views = []ViewOf{{Name: "v"}} }},
		{false, func() { sch.AddFamily(Family{Name: "f"}); sch.AddFamily(Family{Name: "g"}) }},
		{true, func() { delete(sch.Families, "g") }},
		{false, func() { sch.AddFamily(Family{Name: "g"}) }},
		{false, func() { sch.EnableStream(time.Hour, time.Unix(1e9, 0)) }},
		{true, func() { delete(sch.Families, "g"); sch.AddFamily(Family{Name: "g"}) }},
		{false, func() { sch.DisableStream() }},
		{true, func() { delete(sch.Families, "f"); delete(sch.Families, "g") }},
		{true, func() { sch.Stream = nil }},
	} {
		c.change()
		sch.Version++
		sch.KeepForViews(time.Unix(1e9, 0))
		if life := sch.ViewLife(); life < last || life > last != c.grows {
			t.Errorf("change %d: %d follows %d", i, life, last)
		}
		last = sch.ViewLife()
	}
}
