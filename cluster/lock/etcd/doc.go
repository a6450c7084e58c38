// Package etcd is the lock service on etcd.
package etcd
