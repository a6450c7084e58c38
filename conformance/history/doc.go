// Package history runs concurrent clients against a server and checks what
// they saw.
//
//   - Rows records the operations on single rows and asks porcupine whether
//     some order of them explains every answer (linearizability).
//   - Bank and Ring carry their own invariant: a sum that stays, and a list in
//     which every node that is pointed to exists.
//   - Crash kills a trestle process again and again under load and compares
//     what it holds afterwards with what it had acknowledged.
//
// All of them use the official Go client. Its retries are cut off for
// operations that must not take effect twice: see once.
package history
