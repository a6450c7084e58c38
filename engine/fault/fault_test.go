package fault

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

func TestKinds(t *testing.T) {
	for k := Invalid; k <= Internal; k++ {
		if k.Error() == "" || k.Error() == Kind(99).Error() {
			t.Errorf("kind %d has no name", k)
		}
		for _, err := range []error{
			k, New(k, "x"), &Error{Kind: k}, fmt.Errorf("context: %w", k), fmt.Errorf("context: %w", New(k, "x")),
			errors.Join(io.EOF, New(k, "x")), New(k, "x: %w", io.EOF),
		} {
			if KindOf(err) != k || !errors.Is(err, k) {
				t.Errorf("%v: kind %v, want %v", err, KindOf(err), k)
			}
		}
	}
	if KindOf(nil) != 0 || KindOf(io.EOF) != 0 {
		t.Error("a kind of nothing")
	}
}

func TestNew(t *testing.T) {
	err := New(Corruption, "read %s: %w", "x", io.ErrUnexpectedEOF)
	if !errors.Is(err, io.ErrUnexpectedEOF) || err.Error() != "read x: unexpected EOF" {
		t.Errorf("%v", err)
	}
	// The outermost kind is what the caller goes by.
	if got := KindOf(New(Unavailable, "lost: %w", New(Corruption, "x"))); got != Unavailable {
		t.Errorf("kind %v", got)
	}
	if e := InvalidField("a.b", "bad %d", 1); e.Field != "a.b" || e.Kind != Invalid || e.Error() != "bad 1" {
		t.Errorf("%+v", e)
	}
}
