// Package datadirtest has a file system for tests of full disks.
package datadirtest
