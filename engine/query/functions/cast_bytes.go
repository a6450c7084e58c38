package functions

import (
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/trestledb/trestle/engine/query/types"
)

// castFormat is CAST(… FORMAT format [AT TIME ZONE zone]) of a value that is not NULL.
func castFormat(c *Call, from, to *types.Type, v types.Value, format string, zone *types.Value) (types.Value, error) {
	var z *timeZone
	if zone != nil {
		var err error
		if z, err = loadZone(zone.Str); err != nil {
			return types.Null, err
		}
	}
	switch {
	case from.Kind == types.Bytes && to.Kind == types.String:
		return bytesToFormat(c, v.Str, format)
	case from.Kind == types.String && to.Kind == types.Bytes:
		return bytesFromFormat(c, v.Str, format)
	case from.IsNumeric() && to.Kind == types.String:
		return formatNumber(c, from, v, format)
	case from.Kind == types.Date && to.Kind == types.String:
		return formatDateTime(c, format, v.Int*microsPerDay, nil, true)
	case from.Kind == types.Timestamp && to.Kind == types.String:
		return formatDateTime(c, format, v.Int, z, false)
	case from.Kind == types.String && to.Kind == types.Date:
		return parseDateTime(c, format, v.Str, nil, true)
	case from.Kind == types.String && to.Kind == types.Timestamp:
		return parseDateTime(c, format, v.Str, z, false)
	}
	return types.Null, Errorf("FORMAT is not allowed for cast from %s to %s", from, to)
}

// bytesToFormat is CAST(BYTES AS STRING FORMAT …).
func bytesToFormat(c *Call, s, format string) (types.Value, error) {
	switch strings.ToUpper(format) {
	case "HEX", "BASE16":
		return encodeBytes(c, s, hex.EncodedLen(len(s)), func(dst []byte) { hex.Encode(dst, []byte(s)) })
	case "BASE32":
		return encodeBytes(c, s, base32.StdEncoding.EncodedLen(len(s)), func(dst []byte) { base32.StdEncoding.Encode(dst, []byte(s)) })
	case "BASE64":
		return encodeBytes(c, s, base64.StdEncoding.EncodedLen(len(s)), func(dst []byte) { base64.StdEncoding.Encode(dst, []byte(s)) })
	case "BASE64M":
		v, err := bytesToFormat(c, s, "BASE64")
		return types.NewString(breakLines(v.Str)), err
	case "BASE2":
		return encodeBits(c, s, 1)
	case "BASE8":
		return encodeBits(c, s, 3)
	case "ASCII":
		if !isASCII(s) {
			return types.Null, Errorf("Failed to decode invalid ASCII string")
		}
		return types.NewString(s), nil
	case "UTF8", "UTF-8":
		if !utf8.ValidString(s) {
			return types.Null, Errorf("A string is not valid UTF-8.")
		}
		return types.NewString(s), nil
	}
	return types.Null, Errorf("Invalid format '%s'", format)
}

// encodeBytes returns n bytes that encode makes of s.
func encodeBytes(c *Call, s string, n int, encode func(dst []byte)) (types.Value, error) {
	dst, err := growBytes(c, n)
	if err != nil {
		return types.Null, err
	}
	encode(dst)
	return types.NewString(string(dst)), nil
}

// breakLines cuts base64 into lines of 76 characters, as MIME does.
func breakLines(s string) string {
	const line = 76
	if len(s) <= line {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + len(s)/line)
	for len(s) > line {
		b.WriteString(s[:line])
		b.WriteByte('\n')
		s = s[line:]
	}
	b.WriteString(s)
	return b.String()
}

// encodeBits writes s as one number in digits of width bits: the first is of what is left
// over.
func encodeBits(c *Call, s string, width uint) (types.Value, error) {
	n := (len(s)*8 + int(width) - 1) / int(width)
	return encodeBytes(c, s, n, func(dst []byte) {
		var acc uint32
		var have uint
		at := n
		for i := len(s) - 1; i >= 0; i-- {
			acc, have = acc|uint32(s[i])<<have, have+8
			for have >= width {
				at--
				dst[at] = '0' + byte(acc&(1<<width-1))
				acc, have = acc>>width, have-width
			}
		}
		if have > 0 {
			dst[0] = '0' + byte(acc)
		}
	})
}

// bytesFromFormat is CAST(STRING AS BYTES FORMAT …).
func bytesFromFormat(c *Call, s, format string) (types.Value, error) {
	switch strings.ToUpper(format) {
	case "HEX", "BASE16":
		b, err := fromHex(c, s)
		return types.NewString(b), err
	case "BASE32":
		return decodeBase32(c, s)
	case "BASE64", "BASE64M":
		return decodeBase64(c, s)
	case "BASE2":
		return decodeBits(c, s, 1)
	case "BASE8":
		return decodeBits(c, s, 3)
	case "ASCII":
		if !isASCII(s) {
			return types.Null, Errorf("Failed to decode invalid ASCII string")
		}
		return types.NewString(s), nil
	case "UTF8", "UTF-8":
		return types.NewString(s), nil
	}
	return types.Null, Errorf("Invalid format '%s'", format)
}

// decodeBits reads one number in digits of width bits, as many bytes as encodeBits
// would have needed at least.
func decodeBits(c *Call, s string, width uint) (types.Value, error) {
	isBad := func(r byte) bool { return r-'0' >= 1<<width }
	if width == 3 && slices.ContainsFunc([]byte(s), isBad) {
		return types.Null, Errorf("Failed to decode invalid base8 string")
	}
	// GoogleSQL reads groups of eight digits from the end, and counts in them.
	for end := len(s); width == 1 && end > 0; end -= 8 {
		group := s[max(end-8, 0):end]
		if i := slices.IndexFunc([]byte(group), isBad); i >= 0 {
			bad := strings.ToValidUTF8(group[i:i+1], "\uFFFD")
			return types.Null, Errorf("Failed to decode invalid base2 string due to character '%s' at offset %d", bad, i)
		}
	}
	n := (len(s) + 7) / 8
	if width == 3 {
		n = len(s)/8*3 + [...]int{0, 1, 1, 1, 2, 2, 2, 3}[len(s)%8]
	}
	dst, err := growBytes(c, n)
	if err != nil {
		return types.Null, err
	}
	var acc uint32
	var have uint
	at := n
	for i := len(s) - 1; i >= 0; i-- {
		acc, have = acc|uint32(s[i]-'0')<<have, have+width
		if have >= 8 && at > 0 {
			at--
			dst[at] = byte(acc)
			acc, have = acc>>8, have-8
		}
	}
	if have > 0 && at > 0 {
		dst[0] = byte(acc)
	}
	return types.NewString(string(dst)), nil
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// decodeBase32 is FROM_BASE32.
func decodeBase32(c *Call, s string) (types.Value, error) {
	if err := grow(c, len(s)); err != nil {
		return types.Null, err
	}
	if i := strings.IndexAny(s, "\r\n"); i >= 0 {
		return types.Null, Errorf("Failed to decode invalid base32 string")
	}
	b, err := base32.StdEncoding.DecodeString(strings.ToUpper(s))
	if err != nil {
		return types.Null, Errorf("Failed to decode invalid base32 string")
	}
	return types.NewString(string(b)), nil
}

// decodeBase64 is FROM_BASE64. It takes white space anywhere, and text without its
// padding.
func decodeBase64(c *Call, s string) (types.Value, error) {
	if err := grow(c, len(s)); err != nil {
		return types.Null, err
	}
	if strings.ContainsAny(s, spaces) {
		s = strings.Map(func(r rune) rune {
			if strings.ContainsRune(spaces, r) {
				return -1
			}
			return r
		}, s)
	}
	text := s
	if i := strings.IndexByte(s, '='); i >= 0 {
		text = s[:i]
		if pad := s[i:]; strings.Trim(pad, "=") != "" || len(s)%4 != 0 || len(pad) > 2 {
			return types.Null, Errorf("Failed to decode invalid base64 string")
		}
	}
	b, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return types.Null, Errorf("Failed to decode invalid base64 string")
	}
	return types.NewString(string(b)), nil
}
