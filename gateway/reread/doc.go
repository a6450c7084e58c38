// Package reread asks again for what is known and has become old, without making
// requests wait for a backend that is silent.
package reread
