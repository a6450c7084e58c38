// Package memory abuses servers and measures how much memory they take
// meanwhile, and how long a small read takes that somebody else makes.
package memory
