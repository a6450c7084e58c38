// Package catalog is what the lock service keeps of a cluster beside its METADATA. That is
// the schemas of tables, which servers follow as they change, the servers that live, and
// the numbers that name things. All that lasts is JSON, of FormatVersion.
package catalog
