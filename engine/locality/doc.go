// Package locality changes the locality groups of a table's schema, and says
// which changes are allowed. It knows schemas only: who stores them, and tells
// tablets of them, is the caller's matter.
package locality
