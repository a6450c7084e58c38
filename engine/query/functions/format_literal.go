package functions

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/trestledb/trestle/engine/query/types"
)

// quoteString returns s as a STRING literal: in double quotes, or in single ones if it has
// double quotes and no single ones.
func quoteString(s string) string { return string(appendQuoted(nil, s, false)) }

// appendQuoted appends s as a literal, without the b of BYTES.
func appendQuoted(dst []byte, s string, isBytes bool) []byte {
	quote := byte('"')
	if strings.IndexByte(s, '"') >= 0 && strings.IndexByte(s, '\'') < 0 {
		quote = '\''
	}
	dst = append(dst, quote)
	dst = appendEscaped(dst, s, quote, isBytes)
	return append(dst, quote)
}

const hexDigits = "0123456789abcdef"

// appendEscaped appends s with escape sequences for quote (all three if it is 0), for
// backslashes and for what is no printable ASCII. Text keeps its other characters. In text, a hexadecimal digit
// behind \xNN is escaped, too, so that C reads it as a character of its own.
func appendEscaped(dst []byte, s string, quote byte, isBytes bool) []byte {
	escaped := false // the last one was written \xNN
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '\n' && !isBytes:
			dst = append(dst, `\n`...)
		case c == '\r' && !isBytes:
			dst = append(dst, `\r`...)
		case c == '\t' && !isBytes:
			dst = append(dst, `\t`...)
		case c == '\\' || c >= ' ' && c == quote || quote == 0 && (c == '"' || c == '\'' || c == '`'):
			dst = append(dst, '\\', c)
		case c < ' ' || c == 0x7f || c >= utf8.RuneSelf && isBytes || escaped && !isBytes && isHexDigit(c):
			dst = append(dst, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
			escaped = true
			continue
		default:
			dst = append(dst, c)
		}
		escaped = false
	}
	return dst
}

// appendText appends v as %t of FORMAT does: text as it is, also within arrays.
func appendText(dst []byte, t *types.Type, v types.Value) []byte {
	if !v.Valid {
		return append(dst, "NULL"...)
	}
	switch t.Kind {
	case types.Bool:
		return strconv.AppendBool(dst, v.Bool())
	case types.Float32, types.Float64:
		return appendFloatLiteral(dst, t, v.Float, false)
	case types.String:
		return append(dst, v.Str...)
	case types.Bytes:
		return appendEscaped(dst, v.Str, 0, true)
	case types.Date:
		return appendDate(dst, v.Int)
	case types.Timestamp:
		return appendTimestamp(dst, v.Int, nil)
	case types.Enum:
		return append(dst, enumName(t, v.Int)...)
	case types.Array:
		return append(appendElements(append(dst, '['), t, v, appendText), ']')
	case types.Struct:
		return append(appendElements(append(dst, '('), t, v, appendText), ')')
	case types.Map:
		return append(appendElements(append(dst, '{'), t, v, appendText), '}')
	case types.Proto:
		return appendMessage(dst, t, v.Str)
	}
	return appendInt(dst, v.Int)
}

// appendLiteral appends v as %T of FORMAT does: as SQL has literals.
func appendLiteral(dst []byte, t *types.Type, v types.Value) []byte {
	if !v.Valid {
		return append(dst, "NULL"...)
	}
	switch t.Kind {
	case types.Bool:
		return strconv.AppendBool(dst, v.Bool())
	case types.Float32, types.Float64:
		return appendFloatLiteral(dst, t, v.Float, true)
	case types.String:
		return appendQuoted(dst, v.Str, false)
	case types.Bytes:
		return appendQuoted(append(dst, 'b'), v.Str, true)
	case types.Date:
		return append(appendDate(append(dst, `DATE "`...), v.Int), '"')
	case types.Timestamp:
		return append(appendTimestamp(append(dst, `TIMESTAMP "`...), v.Int, nil), '"')
	case types.Enum:
		return appendQuoted(dst, enumName(t, v.Int), false)
	case types.Array:
		return append(appendElements(append(dst, '['), t, v, appendLiteral), ']')
	case types.Struct:
		if len(v.List) < 2 {
			dst = append(dst, "STRUCT"...)
		}
		return append(appendElements(append(dst, '('), t, v, appendLiteral), ')')
	case types.Map:
		return append(appendElements(append(dst, '{'), t, v, appendLiteral), '}')
	case types.Proto:
		return appendQuoted(dst, string(appendMessage(nil, t, v.Str)), false)
	}
	return appendInt(dst, v.Int)
}

// appendElements appends the elements of v, separated by commas, and a map's keys from
// their values by colons.
func appendElements(dst []byte, t *types.Type, v types.Value, one func([]byte, *types.Type, types.Value) []byte) []byte {
	for i, x := range v.List {
		switch {
		case i == 0:
		case t.Kind == types.Map && i%2 == 1:
			dst = append(dst, ": "...)
		default:
			dst = append(dst, ", "...)
		}
		dst = one(dst, elementType(t, i), x)
	}
	return dst
}

// appendFloatLiteral appends a float with a point or an exponent, so that it does not
// look like an integer; as SQL, what is not finite is a CAST.
func appendFloatLiteral(dst []byte, t *types.Type, f float64, sql bool) []byte {
	bits := 64
	if t.Kind == types.Float32 {
		bits = 32
	}
	if !isFinite(f) {
		if !sql {
			return appendFloat(dst, f, bits)
		}
		dst = appendFloat(append(dst, `CAST("`...), f, bits)
		return append(append(append(dst, `" AS `...), t.Kind.String()...), ')')
	}
	at := len(dst)
	dst = appendFloat(dst, f, bits)
	if bytes.ContainsAny(dst[at:], ".e") {
		return dst
	}
	return append(dst, ".0"...)
}

func isHexDigit(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f' }
