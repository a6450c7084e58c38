//go:build !linux

package main

import "syscall"

func childAttr() *syscall.SysProcAttr { return new(syscall.SysProcAttr) }
