// Package bundle reads the schemas of schema bundles, protobuf descriptors and
// Avro schemas, and tells whether a changed bundle still understands what the
// old one described.
//
// Its errors say what is wrong with a schema. The caller knows in which field
// the schema came.
package bundle
