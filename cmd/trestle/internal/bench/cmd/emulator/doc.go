// Command emulator runs Google's in-memory emulator, to be measured against.
// It is a program of its own so that nothing of it is in trestle's binary.
package main
