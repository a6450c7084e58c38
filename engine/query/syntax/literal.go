package syntax

import (
	"strings"
	"unicode/utf8"
)

// A badEscape says what is wrong with a literal, and at which offset.
type badEscape struct {
	msg    string
	offset int
}

// decodeString returns the value of the string or bytes literal s, which lex found.
func decodeString(s string) (string, *badEscape) {
	prefix, raw, bytes := 0, false, false
	for s[prefix] != '\'' && s[prefix] != '"' {
		if s[prefix]|0x20 == 'r' {
			raw = true
		} else {
			bytes = true
		}
		prefix++
	}
	quotes := 1
	if n := len(s) - prefix; n >= 6 && s[prefix+1] == s[prefix] && s[prefix+2] == s[prefix] {
		quotes = 3
	}
	from, to := prefix+quotes, len(s)-quotes
	return unescape(s[:to], from, raw, bytes)
}

// unescape resolves escapes in s from an offset on. Line breaks become \n.
func unescape(s string, from int, raw, bytes bool) (string, *badEscape) {
	body := s[from:]
	if strings.IndexByte(body, '\r') < 0 && (raw || strings.IndexByte(body, '\\') < 0) {
		return body, nil
	}
	out := make([]byte, 0, len(body))
	for i := from; i < len(s); {
		c := s[i]
		switch {
		case c == '\r':
			out = append(out, '\n')
			i++
			if i < len(s) && s[i] == '\n' {
				i++
			}
		case c != '\\' || raw:
			out = append(out, c)
			i++
		default:
			var err *badEscape
			if out, i, err = escape(out, s, i, bytes); err != nil {
				return "", err
			}
		}
	}
	return string(out), nil
}

// escape appends what the escape sequence at s[i] stands for, and returns where it
// ends.
func escape(out []byte, s string, i int, bytes bool) ([]byte, int, *badEscape) {
	bad := func(msg string) ([]byte, int, *badEscape) { return nil, 0, &badEscape{msg, i} }
	p := i + 1
	if p >= len(s) {
		return bad("Illegal escape sequence: \\")
	}
	digits := func(base uint32, from, n int) (uint32, bool) {
		if from+n > len(s) {
			return 0, false
		}
		v := uint32(0)
		for _, c := range []byte(s[from : from+n]) {
			d, ok := digit(c)
			if !ok || d >= base {
				return 0, false
			}
			v = v*base + d
		}
		return v, true
	}
	saw := func(n int) string { return s[p:min(p+n, len(s))] }
	octet := func(v uint32) []byte {
		if bytes {
			return append(out, byte(v))
		}
		return utf8.AppendRune(out, rune(v))
	}
	switch c := s[p]; c {
	case 'a':
		return append(out, '\a'), p + 1, nil
	case 'b':
		return append(out, '\b'), p + 1, nil
	case 'f':
		return append(out, '\f'), p + 1, nil
	case 'n':
		return append(out, '\n'), p + 1, nil
	case 'r':
		return append(out, '\r'), p + 1, nil
	case 't':
		return append(out, '\t'), p + 1, nil
	case 'v':
		return append(out, '\v'), p + 1, nil
	case '\\', '?', '\'', '"', '`':
		return append(out, c), p + 1, nil
	case '0', '1', '2', '3':
		v, ok := digits(8, p, 3)
		if !ok {
			return bad("Illegal escape sequence: Octal escape must be followed by 3 octal digits but saw: \\" + saw(3))
		}
		return octet(v), p + 3, nil
	case 'x', 'X':
		v, ok := digits(16, p+1, 2)
		if !ok {
			return bad("Illegal escape sequence: Hex escape must be followed by 2 hex digits but saw: \\" + saw(3))
		}
		return octet(v), p + 3, nil
	case 'u', 'U':
		if bytes {
			return bad("Illegal escape sequence: Unicode escape sequence \\" + string(c) + " cannot be used in bytes literals")
		}
		n, count := 4, "4"
		if c == 'U' {
			n, count = 8, "8"
		}
		v, ok := digits(16, p+1, n)
		switch {
		case !ok:
			return bad("Illegal escape sequence: \\" + string(c) + " must be followed by " + count + " hex digits but saw: \\" + saw(n+1))
		case v > utf8.MaxRune:
			return bad("Illegal escape sequence: Value of \\" + saw(n+1) + " exceeds Unicode limit (0x0010FFFF)")
		case 0xd800 <= v && v < 0xe000:
			return bad("Illegal escape sequence: Unicode value \\" + saw(n+1) + " is invalid")
		}
		return utf8.AppendRune(out, rune(v)), p + 1 + n, nil
	case '\n', '\r':
		return bad("Illegal escaped newline")
	default:
		_, n := utf8.DecodeRuneInString(s[p:])
		return bad("Illegal escape sequence: \\" + s[p:p+n])
	}
}

func digit(c byte) (uint32, bool) {
	switch {
	case isDigit(c):
		return uint32(c - '0'), true
	case isHex(c):
		return uint32(c|0x20-'a') + 10, true
	}
	return 0, false
}
