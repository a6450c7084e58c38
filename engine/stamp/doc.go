// Package stamp makes sequence numbers that are commit times: a hybrid logical
// clock. A stamp is
//
//	2^50 + microseconds since 2000-01-01 << 5 | site
//
// and fits into the 56 bits of a cell.Seq until 2070. The site is 0: the five bits
// are for clusters that replicate each other.
//
// Formats before 3 counted operations instead. No counter has reached 2^50, so a
// number tells by its size what it is, and what follows it.
//
// Clocks decide how close to real time a stamp is, and nothing else: Next returns
// numbers that only grow, whatever the clock says.
package stamp
