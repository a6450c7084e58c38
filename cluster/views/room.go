package views

// A Room keeps copies of bytes until Reset. The zero Room is empty.
type Room struct{ b []byte }

// roomBytes is how much a Room takes at a time.
const roomBytes = 64 << 10

// Keep returns a copy of b, which is valid until Reset.
func (r *Room) Keep(b []byte) []byte {
	if cap(r.b)-len(r.b) < len(b) {
		r.b = make([]byte, 0, max(roomBytes, len(b))) // what was kept stays where it is
	}
	at := len(r.b)
	r.b = append(r.b, b...)
	return r.b[at:len(r.b):len(r.b)]
}

// Reset drops what was kept, and uses its memory again.
func (r *Room) Reset() { r.b = r.b[:0] }
