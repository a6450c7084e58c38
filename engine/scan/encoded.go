package scan

// An EncodedWriter is a Writer that also takes rows in the form that it makes of
// them itself, from a server that has read and encoded them. They come in
// pieces, between rows:
//
//	(Room+ Encoded)*
//
// A piece is bytes that only the two ends understand, and what a Piece says of
// them.
type EncodedWriter interface {
	Writer
	// Encoding is the number of the form, another one for each that there ever is.
	// 0: rows can come as cells only.
	Encoding() uint64
	// Room returns memory for the next bytes of a piece: n of them, what is still to
	// come of the piece, or fewer. A piece whose bytes do not all come is dropped
	// with the next Flush. Room may block like Flush.
	Room(n int) ([]byte, error)
	// Encoded says of a piece what it is, once its bytes are in their room. When
	// full is true the reader calls Flush before it goes on.
	Encoded(p *Piece) (full bool, err error)
}

// A Piece describes encoded rows.
type Piece struct {
	// Rows is how many rows end in the piece, Cells how many cells they have,
	// parts in earlier pieces included.
	Rows, Cells int64
	// Key is the key of the last row in it, valid during the call only.
	Key []byte
	// Open says that the row of Key goes on in the next piece: the first has no
	// other row then, and the last ends no other.
	Open bool
}

// Encoded returns w as an EncodedWriter, nil if rows can come to it as cells
// only.
func Encoded(w Writer) EncodedWriter {
	if e, ok := w.(EncodedWriter); ok && e.Encoding() != 0 {
		return e
	}
	return nil
}

// A FragmentWriter is an EncodedWriter that has a server not only encode rows, but
// make something of them: a part of a query. Fragment says what, in bytes that only
// the two ends understand. Its Encoding says so, and a server that does not know that
// gives cells.
type FragmentWriter interface {
	EncodedWriter
	// Fragment returns nil if there is none.
	Fragment() []byte
}

// Fragment returns the fragment of w, nil if it has none.
func Fragment(w Writer) []byte {
	if f, ok := w.(FragmentWriter); ok && f.Encoding() != 0 {
		return f.Fragment()
	}
	return nil
}
