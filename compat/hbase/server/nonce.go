package server

import "encoding/binary"

// A nonce says that two calls are the same one, sent twice.
type nonce struct{ group, n uint64 }

// token returns the token by which the store knows a change with the nonce,
// which it keeps with the row. So a call that is repeated is recognised by
// whichever server it comes to, and after those that carried it out are gone,
// for schema.TokenWindow. The nonce 0 is none.
func (n nonce) token() []byte {
	if n.n == 0 {
		return nil
	}
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64([]byte("hbase"), n.group), n.n)
}
