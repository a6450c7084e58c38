// Package s3 keeps objects in a bucket of an S3-compatible store.
//
// An object is one PUT with "If-None-Match: *", which the server carries out only if there
// is no object of that name. Amazon S3 and MinIO do; a server that ignores the header, as
// rclone's does, is found out by Probe. An object carries a nonce of its writer's as
// metadata. A PUT whose outcome is not known is repeated, and the nonce tells an object
// that is there by then from another writer's.
//
// Objects are at most 5 GiB, what one PUT can take.
package s3
