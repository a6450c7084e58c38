//go:build unix

package auth

import (
	"fmt"
	"io/fs"
	"syscall"
)

// private returns an error if others than the owner may read a file. That of
// root may be read by a group too: a server that is not root has it by that, as
// with the secrets of Kubernetes.
func private(info fs.FileInfo) error {
	refused := fs.FileMode(0o077)
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid == 0 {
		refused = 0o037
	}
	if mode := info.Mode().Perm(); mode&refused != 0 {
		return fmt.Errorf("its permissions are %04o: only its owner may read it (chmod 600), or if that is root a group (chmod 640)", mode)
	}
	return nil
}
