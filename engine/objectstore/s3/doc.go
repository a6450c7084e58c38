// Package s3 keeps objects in a bucket of an S3-compatible store.
//
// An object is one PUT with "If-None-Match: *", which the server carries out
// only if there is no object of that name. Amazon S3 and MinIO do; a server
// that ignores the header, as rclone's does, is found out by Probe. An object
// carries a nonce of its writer's as metadata: when the outcome of a PUT is not
// known it is made again, and by the nonce an object that is there by then is
// told from somebody else's.
//
// Objects are at most 5 GiB, what one PUT can take.
package s3
