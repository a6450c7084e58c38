package functions

import (
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"math/bits"
	"slices"
	"unicode/utf8"

	"github.com/trestledb/trestle/engine/query/types"
)

func evalASCII(c *Call, args []types.Value) (types.Value, error) {
	s := args[0].Str
	if s == "" {
		return types.NewInt(0), nil
	}
	if s[0] >= utf8.RuneSelf && c.Types[0].Kind == types.String {
		return types.Null, Errorf("Argument to ASCII is not a structurally valid ASCII string: '%s'", s)
	}
	return types.NewInt(int64(s[0])), nil
}

func evalUnicode(_ *Call, args []types.Value) (types.Value, error) {
	if args[0].Str == "" {
		return types.NewInt(0), nil
	}
	r, _ := utf8.DecodeRuneInString(args[0].Str)
	return types.NewInt(int64(r)), nil
}

func evalChr(_ *Call, args []types.Value) (types.Value, error) {
	if !isRune(args[0].Int) {
		return types.Null, Errorf("Invalid codepoint %d", args[0].Int)
	}
	return types.NewString(string(rune(args[0].Int))), nil
}

// isRune tells whether n is a code point that UTF-8 has: no surrogate.
func isRune(n int64) bool { return n >= 0 && n <= utf8.MaxRune && utf8.ValidRune(rune(n)) }

func evalCodePointsToString(c *Call, args []types.Value) (types.Value, error) {
	list := args[0].List
	if slices.ContainsFunc(list, isNullValue) {
		return types.Null, nil
	}
	if err := grow(c, len(list)); err != nil {
		return types.Null, err
	}
	out := make([]byte, 0, len(list))
	for _, v := range list {
		if !isRune(v.Int) {
			return types.Null, Errorf("Invalid codepoint %d", v.Int)
		}
		out = utf8.AppendRune(out, rune(v.Int))
	}
	return types.NewString(string(out)), nil
}

func isNullValue(v types.Value) bool { return !v.Valid }

func evalCodePointsToBytes(c *Call, args []types.Value) (types.Value, error) {
	list := args[0].List
	if slices.ContainsFunc(list, isNullValue) {
		return types.Null, nil
	}
	out, err := growBytes(c, len(list))
	if err != nil {
		return types.Null, err
	}
	for i, v := range list {
		if v.Int < 0 || v.Int > 255 {
			return types.Null, Errorf("Invalid ASCII value %d", v.Int)
		}
		out[i] = byte(v.Int)
	}
	return types.NewString(string(out)), nil
}

func evalToCodePoints(c *Call, args []types.Value) (types.Value, error) {
	s := args[0].Str
	bytes := c.Types[0].Kind == types.Bytes
	n := len(s)
	if !bytes {
		n = utf8.RuneCountInString(s)
	}
	if err := growList(c, n); err != nil {
		return types.Null, err
	}
	list := make([]types.Value, 0, n)
	if bytes {
		for i := range n {
			list = append(list, types.NewInt(int64(s[i])))
		}
	} else {
		for _, r := range s {
			list = append(list, types.NewInt(int64(r)))
		}
	}
	return types.NewList(list), nil
}

// fromHex reads hexadecimal digits. Of an odd number the first stands for a byte of its
// own.
func fromHex(c *Call, s string) (string, error) {
	for i := range len(s) {
		if !isHexDigit(s[i]) {
			return "", Errorf("Failed to decode invalid hexadecimal string due to character at offset %d: %s", i, toValidUTF8(s))
		}
	}
	if err := grow(c, len(s)); err != nil {
		return "", err
	}
	if len(s)%2 == 1 {
		s = "0" + s
	}
	b, err := hex.DecodeString(s)
	return string(b), err
}

func evalToHex(c *Call, args []types.Value) (types.Value, error) {
	s := args[0].Str
	return encodeBytes(c, s, hex.EncodedLen(len(s)), func(dst []byte) { hex.Encode(dst, []byte(s)) })
}

func evalToBase32(c *Call, args []types.Value) (types.Value, error) {
	s := args[0].Str
	return encodeBytes(c, s, base32.StdEncoding.EncodedLen(len(s)), func(dst []byte) { base32.StdEncoding.Encode(dst, []byte(s)) })
}

func evalToBase64(c *Call, args []types.Value) (types.Value, error) {
	s := args[0].Str
	return encodeBytes(c, s, base64.StdEncoding.EncodedLen(len(s)), func(dst []byte) { base64.StdEncoding.Encode(dst, []byte(s)) })
}

// safeConvertBytes returns s with U+FFFD for each byte that is not of valid UTF-8.
func safeConvertBytes(c *Call, s string) (string, error) {
	if utf8.ValidString(s) {
		return s, nil
	}
	if err := grow(c, 3*len(s)); err != nil {
		return "", err
	}
	return toValidUTF8(s), nil
}

func toValidUTF8(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	out := make([]byte, 0, len(s)+16)
	for _, r := range s {
		out = utf8.AppendRune(out, r)
	}
	return string(out)
}

func bitCountBytes(s string) int64 {
	n := 0
	for i := range len(s) {
		n += bits.OnesCount8(s[i])
	}
	return int64(n)
}

func evalBitCount(_ *Call, args []types.Value) (types.Value, error) {
	return types.NewInt(int64(bits.OnesCount64(uint64(args[0].Int)))), nil
}
