// Package model is what HBase clients see of our tables: names, regions,
// descriptors, timestamps and the rules of families.
//
// An HBase table ns:name is the table name of the instance ns; the namespace
// "default" is an instance that the server's settings name. What HBase knows of
// a table and we do not act on is a record of the catalog, so that it comes
// back as it was given. What both know (families, versions, ages) is in the
// schema alone, and the same whichever API changed it.
//
//	HBase                        ours
//	region                       tablet
//	timestamp t (ms)             t * 1000 µs, saturating; as it is if TS_UNIT is RAW
//	VERSIONS, TTL, MIN_VERSIONS  GC rule, see Family
//	delete marker                covers what is written later too, unless
//	                             NEW_VERSION_BEHAVIOR or made through Bigtable
package model
