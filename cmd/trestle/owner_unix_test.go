//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckOwner: root adds nothing to what is another user's.
func TestCheckOwner(t *testing.T) {
	name := filepath.Join(t.TempDir(), "FORMAT")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := checkOwner(name, os.Geteuid()); err != nil {
		t.Error(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(name, 12345, -1); err != nil {
			t.Fatal(err)
		}
	}
	if err := checkOwner(name, 0); err == nil || !strings.Contains(err.Error(), "runuser -u ") {
		t.Error(err)
	}
	if err := checkOwner(name, 1000); err != nil {
		t.Errorf("a user whom the system may refuse: %v", err)
	}
}
