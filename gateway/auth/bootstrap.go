package auth

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/auth/servertls"
)

// rootID is the id of the account that Bootstrap makes.
const rootID = "trestle-root"

// Bootstrap makes the first way in: if no root account has a key, it makes one
// and writes it to path, readable by its owner only. It tells whether it did.
// The file is for whoever administers the server, and may be moved elsewhere.
func (s *Accounts) Bootstrap(ctx context.Context, path string) (made bool, err error) {
	all, err := s.List(ctx, "")
	if err != nil {
		return false, err
	}
	for _, a := range all {
		if a.Root && !a.Disabled && len(a.Keys) > 0 {
			return false, nil
		}
	}
	email := Email(rootID, SystemProject)
	a, err := s.Get(ctx, email)
	if fault.KindOf(err) == fault.NotFound {
		a, err = s.Create(ctx, SystemProject, rootID, "Root", "May do everything", true)
	}
	if err != nil {
		return false, err
	}
	file, key, err := s.generate(a)
	if err != nil {
		return false, err
	}
	// First the file: a crash in between leaves a key that nobody accepts, and
	// the next start makes another.
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return false, fmt.Errorf("write the root key: %w", err)
	}
	if err := servertls.WriteFile(path, file, 0o600); err != nil {
		return false, fmt.Errorf("write the root key: %w", err)
	}
	if _, err := s.Update(ctx, email, func(a *Account) error {
		a.Disabled, a.Root = false, true
		return nil
	}); err != nil {
		return false, err
	}
	return true, s.register(ctx, email, key)
}
