package model

import (
	"testing"

	"github.com/trestledb/trestle/gateway/backend"
)

func TestFits(t *testing.T) {
	var _ backend.Backend = New(Options{})
}
