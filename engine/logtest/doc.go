// Package logtest keeps what is logged, for tests that look at it while more is logged.
package logtest
