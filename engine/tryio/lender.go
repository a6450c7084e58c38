package tryio

// A Lender has a buffer for what is read.
type Lender interface {
	// Lend returns the buffer, which is not empty.
	Lend() []byte
	// TakeBack takes it back: nothing was read to it.
	TakeBack()
}
