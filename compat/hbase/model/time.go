package model

import "math"

// Latest is the timestamp that asks for the server's time.
const Latest int64 = math.MaxInt64

// maxMicros is the largest multiple of 1000 of a timestamp.
const maxMicros = math.MaxInt64 - math.MaxInt64%1000

// A Unit says how HBase's timestamps are stored.
type Unit uint8

// The units. Millis is HBase's convention; with Raw the number is kept as it
// is, for tables whose clients use it for something else.
const (
	Millis Unit = iota
	Raw
)

// Micros returns the engine's form of an HBase timestamp.
func (u Unit) Micros(ts int64) int64 {
	if u == Raw {
		return ts
	}
	if ts > maxMicros/1000 {
		return maxMicros
	}
	if ts < -maxMicros/1000 {
		return -maxMicros
	}
	return ts * 1000
}

// HBase returns the HBase form of an engine's timestamp, rounded down.
func (u Unit) HBase(micros int64) int64 {
	if u == Raw {
		return micros
	}
	if micros >= maxMicros {
		return Latest
	}
	ms := micros / 1000
	if micros%1000 < 0 {
		ms--
	}
	return ms
}

// Bounds returns the engine's [start, end) of HBase's [from, to).
func (u Unit) Bounds(from, to int64) (start, end int64) {
	start, end = math.MinInt64, math.MaxInt64
	if from > 0 {
		start = u.Micros(from)
	}
	if to != math.MaxInt64 {
		end = u.Micros(to)
	}
	return start, end
}
