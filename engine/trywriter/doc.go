// Package trywriter writes to connections without waiting for them.
package trywriter
