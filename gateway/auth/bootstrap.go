package auth

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/auth/servertls"
)

// rootID is the id of the account that Bootstrap makes.
const rootID = "trestle-root"

// Bootstrap makes the first way in: if no root account has a key, it makes one
// and writes it to path, readable by its owner only. It tells whether it did: of
// several processes of a cluster that begin together one does.
// The file is for the server's administrator, and may be moved elsewhere.
func (s *Accounts) Bootstrap(ctx context.Context, path string) (made bool, err error) {
	all, err := s.List(ctx, "")
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(all, (*Account).letsIn) {
		return false, nil
	}
	email := Email(rootID, SystemProject)
	a, err := s.Get(ctx, email)
	if fault.KindOf(err) == fault.NotFound {
		a, err = s.Create(ctx, SystemProject, rootID, "Root", "May do everything", true)
		if fault.KindOf(err) == fault.AlreadyExists {
			a, err = s.Get(ctx, email)
		}
	}
	if err != nil {
		return false, err
	}
	file, key, err := s.generate(a)
	if err != nil {
		return false, err
	}
	// First the file: a crash in between leaves a key that is not accepted, and
	// the next start makes another.
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return false, fmt.Errorf("write the root key: %w", err)
	}
	if err := servertls.WriteFile(path, file); err != nil {
		return false, fmt.Errorf("write the root key: %w", err)
	}
	_, err = s.Update(ctx, email, func(a *Account) error {
		if a.letsIn() {
			return errOther
		}
		a.Disabled, a.Root = false, true
		a.Keys = append(slices.Clone(a.Keys), key)
		return nil
	})
	if errors.Is(err, errOther) {
		return false, os.Remove(path)
	}
	return err == nil, err
}

// errOther says that another process has made the first key.
var errOther = errors.New("there is a root key")

// letsIn tells whether the account has a key, and may do everything.
func (a *Account) letsIn() bool { return a.Root && !a.Disabled && len(a.Keys) > 0 }
