//go:build !unix

package main

import "os"

// columns returns 0: it is not known how many columns a terminal has.
func columns(*os.File) int { return 0 }
