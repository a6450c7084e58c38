package main

import "syscall"

func ownGroup(a *syscall.SysProcAttr) *syscall.SysProcAttr {
	a.CreationFlags |= syscall.CREATE_NEW_PROCESS_GROUP
	return a
}
