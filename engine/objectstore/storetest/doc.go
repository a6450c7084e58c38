// Package storetest is the suite that every form of objectstore.Store passes.
package storetest
