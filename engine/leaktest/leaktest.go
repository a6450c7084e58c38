package leaktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// None fails the test if goroutines stay that o does not leave out.
func None(t testing.TB, o ...goleak.Option) {
	t.Helper()
	if err := find(time.Minute, o); err != nil {
		t.Error(err)
	}
}

// Main runs the tests of a package and exits, with an error if goroutines stay that o does not
// leave out.
func Main(m *testing.M, o ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		if err := find(time.Minute, o); err != nil {
			fmt.Fprintf(os.Stderr, "the tests passed: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

func find(within time.Duration, o []goleak.Option) (err error) {
	for end := time.Now().Add(within); ; {
		if err = goleak.Find(o...); err == nil || time.Now().After(end) {
			return err
		}
	}
}
