// Package datadirtest has file systems for tests of full disks and of power cuts.
package datadirtest
