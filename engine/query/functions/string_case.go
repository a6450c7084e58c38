package functions

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
	"golang.org/x/text/unicode/norm"

	"github.com/trestledb/trestle/engine/query/types"
)

// asciiCase returns s with the letters between low and low+25 in the other case, which
// differs in bit 0x20, and whether s is ASCII: otherwise it is returned unchanged. bytes
// leaves what is not ASCII as it is.
func asciiCase(c *Call, s string, low byte, bytes bool) (string, bool, error) {
	first := -1
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf && !bytes {
			return s, false, nil
		}
		if first < 0 && s[i]-low < 26 {
			first = i
		}
	}
	if first < 0 {
		return s, true, nil
	}
	b, err := growBytes(c, len(s))
	if err != nil {
		return "", true, err
	}
	copy(b, s)
	for i := first; i < len(b); i++ {
		if b[i]-low < 26 {
			b[i] ^= 0x20
		}
	}
	return string(b), true, nil
}

// changeCase returns the Eval of LOWER or UPPER. Of text they follow Unicode's full
// mapping: the upper case of ß is SS.
func changeCase(low byte, bytes bool) evalFunc {
	return stringResult(func(c *Call, s string) (string, error) {
		out, done, err := asciiCase(c, s, low, bytes)
		if done || err != nil {
			return out, err
		}
		if err := grow(c, 3*len(s)); err != nil {
			return "", err
		}
		if low == 'A' {
			return cases.Lower(language.Und).String(s), nil
		}
		return cases.Upper(language.Und).String(s), nil
	})
}

// initcapDelimiters are what words of INITCAP are separated by, with white space.
const initcapDelimiters = "[](){}/|\\<>!?@\"#$&~_,.:;*%+-^"

func evalInitcap(c *Call, args []types.Value) (types.Value, error) {
	s := args[0].Str
	isDelimiter := func(r rune) bool { return isSpace(r) || strings.ContainsRune(initcapDelimiters, r) }
	if hasArg(c, args, 1) {
		isDelimiter = func(r rune) bool { return strings.ContainsRune(args[1].Str, r) }
	}
	if err := grow(c, len(s)); err != nil {
		return types.Null, err
	}
	out := make([]byte, 0, len(s))
	start := true
	for _, r := range s {
		switch {
		case isDelimiter(r):
			start = true
		case start:
			r, start = unicode.ToUpper(r), false
		default:
			r = unicode.ToLower(r)
		}
		out = utf8.AppendRune(out, r)
	}
	return types.NewString(string(out)), nil
}

// isSpace tells whether a character has Unicode's property White_Space.
func isSpace(r rune) bool { return unicode.Is(unicode.White_Space, r) }

// TRIM.

// trim returns the Eval of TRIM, LTRIM or RTRIM of text.
func trim(left, right bool) evalFunc {
	return func(c *Call, args []types.Value) (types.Value, error) {
		s, cut := args[0].Str, isSpace
		if hasArg(c, args, 1) {
			set := args[1].Str
			cut = func(r rune) bool { return strings.ContainsRune(set, r) }
		}
		if left {
			s = strings.TrimLeftFunc(s, cut)
		}
		if right {
			s = strings.TrimRightFunc(s, cut)
		}
		return types.NewString(s), nil
	}
}

// trimBytes is trim for BYTES.
func trimBytes(left, right bool) evalFunc {
	return func(_ *Call, args []types.Value) (types.Value, error) {
		s, set := args[0].Str, args[1].Str
		for left && s != "" && strings.IndexByte(set, s[0]) >= 0 {
			s = s[1:]
		}
		for right && s != "" && strings.IndexByte(set, s[len(s)-1]) >= 0 {
			s = s[:len(s)-1]
		}
		return types.NewString(s), nil
	}
}

// NORMALIZE.

func normalForm(c *Call, args []types.Value) (norm.Form, error) {
	if !hasArg(c, args, 1) {
		return norm.NFC, nil
	}
	switch strings.ToUpper(args[1].Str) {
	case "NFC":
		return norm.NFC, nil
	case "NFD":
		return norm.NFD, nil
	case "NFKC":
		return norm.NFKC, nil
	case "NFKD":
		return norm.NFKD, nil
	}
	return norm.NFC, Errorf("A valid normalize mode is required.")
}

// normalize returns the Eval of NORMALIZE, or NORMALIZE_AND_CASEFOLD.
func normalize(fold bool) evalFunc {
	return func(c *Call, args []types.Value) (types.Value, error) {
		form, err := normalForm(c, args)
		if err != nil {
			return types.Null, err
		}
		// A character becomes at most 18 of them, in NFKD.
		s := args[0].Str
		if err := grow(c, 4*len(s)); err != nil {
			return types.Null, err
		}
		s = form.String(s)
		if fold {
			s = cases.Fold().String(s)
		}
		return types.NewString(s), nil
	}
}

// soundexCodes has the code of each letter from A on: 0 for vowels and H, W, Y.
const soundexCodes = "01230120022455012623010202"

func soundex(_ *Call, s string) (string, error) {
	var out [4]byte
	n := 0
	var previous byte
	for i := 0; i < len(s) && n < len(out); i++ {
		letter := s[i] &^ 0x20
		if letter < 'A' || letter > 'Z' {
			continue
		}
		code := soundexCodes[letter-'A']
		switch {
		case n == 0:
			out[0], n, previous = s[i], 1, code
		case code != '0' && code != previous:
			out[n], previous = code, code
			n++
		}
	}
	if n == 0 {
		return "", nil
	}
	for ; n < len(out); n++ {
		out[n] = '0'
	}
	return string(out[:]), nil
}
