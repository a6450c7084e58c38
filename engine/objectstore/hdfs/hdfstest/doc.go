// Package hdfstest gives tests an HDFS: a real one, or one in the test's process
// that does what the real one was seen to do.
package hdfstest
