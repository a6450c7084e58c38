// Package budget divides the bytes that requests and answers may hold, one
// Budget for all connections and protocols of a process, and those that large
// cells may hold while they are read.
//
// A caller asks once, before it holds anything: who held some bytes and waited
// for more could wait for somebody who does the same.
package budget
