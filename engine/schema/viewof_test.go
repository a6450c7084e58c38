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
