// Package s3test gives tests an S3 server.
package s3test
