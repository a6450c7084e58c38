//go:build unix

package main

import "syscall"

// keepToOwner makes every file and directory that the process makes from now on
// its user's only.
func keepToOwner() { syscall.Umask(0o077) }
