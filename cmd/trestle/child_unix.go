//go:build unix

package main

import "syscall"

// ownGroup keeps a child from getting an interrupt of the terminal, which is for
// its parent.
func ownGroup(a *syscall.SysProcAttr) *syscall.SysProcAttr {
	a.Setpgid = true
	return a
}
