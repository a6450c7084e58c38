package leaktest

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestFind: a goroutine that ends later than goleak waits is none that stays.
func TestFind(t *testing.T) {
	o := []goleak.Option{goleak.IgnoreCurrent()}
	end := make(chan struct{})
	time.AfterFunc(time.Second, func() { close(end) })
	go stays(end)
	if err := find(time.Minute, o); err != nil {
		t.Error(err)
	}
	end = make(chan struct{})
	defer close(end)
	go stays(end)
	if err := find(0, o); err == nil || !strings.Contains(err.Error(), "leaktest.stays") {
		t.Errorf("a goroutine that stays: %v", err)
	}
}

func stays(end chan struct{}) { <-end }
