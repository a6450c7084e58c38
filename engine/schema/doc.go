// Package schema describes tables: column families with their garbage
// collection rules and value types, timestamp granularity, and the limits that
// hold for every table.
//
// What the engine does not act on (row key schema, change stream, backup
// policy and the like) travels as opaque bytes that the gateway wrote and
// understands.
package schema
