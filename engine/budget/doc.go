// Package budget divides the bytes that requests and answers may hold, and
// those that large cells may hold while they are read.
//
// A caller asks once, before it holds anything: one that held some bytes and
// waited for more could wait for another that does the same.
package budget
