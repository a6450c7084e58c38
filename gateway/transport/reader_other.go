//go:build !unix

package transport

// canTry says that descriptors cannot be read without waiting.
const canTry = false

func (*reader) tryRead(uintptr) bool { return true }
