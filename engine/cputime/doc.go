// Package cputime tells how much processor time a process has had. Tests and benchmarks go by
// it where the time that passes says little: on a machine that does something else as well.
package cputime
