package objectstore

import (
	"crypto/rand"
	"strings"
	"time"
)

// onceMark begins the name of an owner that lives once. No server's name begins so.
const onceMark = "_"

// onceLife is how long an unfinished file of such an owner stays after the last write to
// it. A process that lives writes an object in less.
const onceLife = 24 * time.Hour

// OnceOwner returns the name of an Owner that no process had before and none has later,
// for a command that runs on a host. What it leaves unfinished when it is killed is
// Abandoned a day later.
func OnceOwner(host string) string { return onceMark + host + "-" + rand.Text() }

// Abandoned tells whether a temporary file, last written at a time, is of an OnceOwner
// that has died, or is taken for dead: opening a store removes it. An owner that lives all
// the same meets an error when it finishes the object; nothing of it is stored.
func Abandoned(file string, written time.Time) bool {
	return strings.HasPrefix(file, onceMark) && time.Since(written) > onceLife
}
