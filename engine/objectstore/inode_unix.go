//go:build unix

package objectstore

import (
	"io/fs"
	"syscall"
)

func sameInode(a, b fs.FileInfo) bool {
	p, okA := a.Sys().(*syscall.Stat_t)
	q, okB := b.Sys().(*syscall.Stat_t)
	return okA && okB && p.Dev == q.Dev && p.Ino == q.Ino
}
