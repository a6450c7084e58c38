package main

import "syscall"

// childAttr makes a child end with its parent, even if that is killed.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
