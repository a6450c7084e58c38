//go:build !linux

package objectstore

import "github.com/cockroachdb/pebble/v2/vfs"

func dropPages(vfs.File) {}
