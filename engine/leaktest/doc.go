// Package leaktest tells tests which goroutines they leave behind. It gives those that are
// about to end a minute, as goleak itself waits less than half a second, in which a goroutine
// of a busy machine may not run.
package leaktest
