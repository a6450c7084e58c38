//go:build unix

package main

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// keepToOwner makes every file and directory that the process makes from now on
// its user's only.
func keepToOwner() { syscall.Umask(0o077) }

// checkOwner returns an error if uid is root and a file or directory is another user's, who
// could not read what root adds. Others are refused by the system.
func checkOwner(name string, uid int) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if uid != 0 || !ok || s.Uid == 0 {
		return nil
	}
	owner := strconv.Itoa(int(s.Uid))
	if u, err := user.LookupId(owner); err == nil {
		owner = u.Username
	}
	return fmt.Errorf("%s is user %s's, whose server could not read what root adds: run this as %s, as by runuser -u %s -- trestle …", name, owner, owner, owner)
}
