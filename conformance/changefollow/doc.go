// Package changefollow judges the change streams of a backend, below messages and tokens,
// which are the matter of conformance/changecheck. A Follower reads all partitions of a
// table as Beam's connector does, and says what no stream may do.
package changefollow
