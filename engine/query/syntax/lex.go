package syntax

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// A kind is what a token is.
type kind uint8

const (
	tEOF kind = iota
	tIdent
	tQuoted  // an identifier in backquotes
	tKeyword // a reserved word
	tInt
	tFloat
	tString
	tBytes
	// What cannot be read. The parser reports it when it gets there, and any other
	// error that comes before it.
	tUnclosed
	tIllegal
	tPositional // ?
	tAt         // @
	tAtAt       // @@
	tHint       // @{
	tLParen
	tRParen
	tLBracket
	tRBracket
	tLBrace
	tRBrace
	tComma
	tDot
	tSemicolon
	tColon
	tStar
	tSlash
	tPlus
	tMinus
	tTilde
	tAmp
	tPipe
	tCaret
	tConcat
	tShiftLeft
	tShiftRight
	tEqual
	tNotEqual // != and <>
	tLess
	tLessEqual
	tGreater
	tGreaterEqual
	tArrow     // ->
	tNamed     // =>
	tPipeArrow // |>
	tOther     // a character that GoogleSQL knows, and no rule here
)

// A token is a span of the text. Literals and identifiers are decoded when they are
// used, so that errors come in the order of the text.
type token struct {
	pos, end Pos
	kind     kind
	word     word
}

// lex appends the tokens of text to toks, the last one tEOF, tUnclosed or tIllegal.
func lex(text string, toks []token) []token {
	// prev and before are the kinds of the last two tokens.
	var prev, before kind
	for i := 0; ; {
		i = skipSpace(text, i)
		if i < 0 {
			return append(toks, token{pos: Pos(-1 - i), end: Pos(len(text)), kind: tUnclosed})
		}
		if i == len(text) {
			// Messages about the end have the place behind the last character but spaces.
			end := Pos(len(strings.TrimRight(text, " \t\r\n")))
			return append(toks, token{pos: end, end: end, kind: tEOF})
		}
		t := token{pos: Pos(i), kind: tOther}
		c := text[i]
		switch {
		case isDigit(c) && prev == tDot && endsPath(before):
			i = skipName(text, i)
			t.kind = tIdent
		case isNameStart(c):
			if n, k := stringStart(text, i); n > 0 {
				t.kind, i = lexString(text, i, n, k)
				break
			}
			i = skipName(text, i)
			t.kind = tIdent
			if prev == tDot && endsPath(before) || prev == tAt || prev == tAtAt {
				break
			}
			info := lookupWord(text[t.pos:i])
			t.word = info.word
			if info.reserved {
				t.kind = tKeyword
			}
		case isDigit(c) || c == '.' && i+1 < len(text) && isDigit(text[i+1]) && !(endsPath(prev)):
			t.kind, i = lexNumber(text, i)
		case c == '\'' || c == '"':
			t.kind, i = lexString(text, i, 0, tString)
		case c == '`':
			t.kind, i = lexQuoted(text, i)
		default:
			var n int
			if t.kind, n = lexOperator(text[i:]); n == 0 {
				t.kind, n = tIllegal, 1
			}
			i += n
		}
		t.end = Pos(i)
		toks = append(toks, t)
		if t.kind == tUnclosed || t.kind == tIllegal {
			return toks
		}
		prev, before = t.kind, prev
	}
}

// endsPath tells whether a dot behind a token of kind k is field access, so that
// any word, and digits, may follow.
func endsPath(k kind) bool {
	return k == tIdent || k == tQuoted || k == tRParen || k == tRBracket || k == tPositional
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isHex(c byte) bool { return isDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'f' }

func isNameStart(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' || c == '_' }

func skipName(text string, i int) int {
	for i < len(text) && (isNameStart(text[i]) || isDigit(text[i])) {
		i++
	}
	return i
}

// skipSpace returns where the next token begins at or behind i. Of an unclosed
// comment that begins at j it returns -1-j.
func skipSpace(text string, i int) int {
	for i < len(text) {
		switch c := text[i]; {
		case c == ' ' || '\b' <= c && c <= '\r':
			i++
		case c == '#' || c == '-' && strings.HasPrefix(text[i:], "--"):
			n := strings.IndexAny(text[i:], "\r\n")
			if n < 0 {
				return len(text)
			}
			i += n + 1
		case c == '/' && strings.HasPrefix(text[i:], "/*"):
			n := strings.Index(text[i+2:], "*/")
			if n < 0 {
				return -1 - i
			}
			i += n + 4
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRuneInString(text[i:])
			if !isSpace(r) {
				return i
			}
			i += n
		default:
			return i
		}
	}
	return i
}

// isSpace has the spaces beyond ASCII that GoogleSQL skips: those that have a width
// and show nothing.
func isSpace(r rune) bool {
	return r == 0xa0 || 0x2000 <= r && r <= 0x200a || r == 0x202f || r == 0x205f || r == 0x3000
}

func lexNumber(text string, i int) (kind, int) {
	if text[i] == '0' && i+2 < len(text) && text[i+1]|0x20 == 'x' && isHex(text[i+2]) {
		i += 2
		for i < len(text) && isHex(text[i]) {
			i++
		}
		return tInt, i
	}
	k := tInt
	for i < len(text) && isDigit(text[i]) {
		i++
	}
	if i < len(text) && text[i] == '.' {
		k = tFloat
		for i++; i < len(text) && isDigit(text[i]); i++ {
		}
	}
	if i+1 < len(text) && text[i]|0x20 == 'e' {
		j := i + 1
		if text[j] == '+' || text[j] == '-' {
			j++
		}
		if j < len(text) && isDigit(text[j]) {
			k = tFloat
			for i = j; i < len(text) && isDigit(text[i]); i++ {
			}
		}
	}
	return k, i
}

// stringStart returns the length of the prefix r, b, rb or br that makes what begins
// at i a string, or 0.
func stringStart(text string, i int) (int, kind) {
	k := tString
	for n := range 3 {
		if i+n >= len(text) {
			return 0, k
		}
		switch c := text[i+n]; {
		case c == '\'' || c == '"':
			return n, k
		case c|0x20 == 'b' && k == tString:
			k = tBytes
		case c|0x20 == 'r' && (n == 0 || text[i]|0x20 == 'b'):
		default:
			return 0, k
		}
	}
	return 0, k
}

// lexString finds the end of a string whose quotes begin at i+prefix. In every
// string, raw ones too, a backslash takes the next character along.
func lexString(text string, i, prefix int, k kind) (kind, int) {
	i += prefix
	q := text[i]
	quotes := 1
	if i+2 < len(text) && text[i+1] == q && text[i+2] == q {
		quotes = 3
	}
	for i += quotes; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
		case c == q:
			if quotes == 1 {
				return k, i + 1
			}
			if i+2 < len(text) && text[i+1] == q && text[i+2] == q {
				return k, i + 3
			}
		case (c == '\n' || c == '\r') && quotes == 1:
			return tUnclosed, i
		}
	}
	return tUnclosed, len(text)
}

func lexQuoted(text string, i int) (kind, int) {
	for i++; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '`':
			return tQuoted, i + 1
		case '\n', '\r':
			return tUnclosed, i
		}
	}
	return tUnclosed, len(text)
}

// unclosed names what begins with s and has no end.
func unclosed(s string) string {
	switch s[0] {
	case '/':
		return "comment"
	case '`':
		return "identifier literal"
	}
	raw, what := "", "string"
	i := 0
	for ; s[i] != '\'' && s[i] != '"'; i++ {
		if s[i]|0x20 == 'r' {
			raw = "raw "
		} else {
			what = "bytes"
		}
	}
	triple := ""
	if len(s) >= i+3 && s[i+1] == s[i] && s[i+2] == s[i] {
		triple = "triple-quoted "
	}
	return triple + raw + what + " literal"
}

// illegal is the text of a message about the byte c, which begins no token.
func illegal(c byte) string {
	if c < ' ' || c > '~' {
		return fmt.Sprintf(`Illegal input character "\%03o"`, c)
	}
	return fmt.Sprintf(`Illegal input character "%c"`, c)
}

// lexOperator returns the operator that s begins with and its length, or 0.
func lexOperator(s string) (kind, int) {
	var next byte
	if len(s) > 1 {
		next = s[1]
	}
	switch s[0] {
	case '(':
		return tLParen, 1
	case ')':
		return tRParen, 1
	case '[':
		return tLBracket, 1
	case ']':
		return tRBracket, 1
	case '{':
		return tLBrace, 1
	case '}':
		return tRBrace, 1
	case ',':
		return tComma, 1
	case '.':
		return tDot, 1
	case ';':
		return tSemicolon, 1
	case ':':
		return tColon, 1
	case '*':
		return tStar, 1
	case '/':
		return tSlash, 1
	case '+':
		if next == '=' {
			return tOther, 2
		}
		return tPlus, 1
	case '-':
		switch next {
		case '>':
			return tArrow, 2
		case '=':
			return tOther, 2
		}
		return tMinus, 1
	case '~':
		return tTilde, 1
	case '&':
		return tAmp, 1
	case '^':
		return tCaret, 1
	case '?':
		return tPositional, 1
	case '@':
		switch next {
		case '@':
			return tAtAt, 2
		case '{':
			return tHint, 2
		}
		return tAt, 1
	case '|':
		switch next {
		case '|':
			return tConcat, 2
		case '>':
			return tPipeArrow, 2
		}
		return tPipe, 1
	case '<':
		switch next {
		case '=':
			return tLessEqual, 2
		case '>':
			return tNotEqual, 2
		case '<':
			return tShiftLeft, 2
		}
		return tLess, 1
	case '>':
		switch next {
		case '=':
			return tGreaterEqual, 2
		case '>':
			return tShiftRight, 2
		}
		return tGreater, 1
	case '=':
		if next == '>' {
			return tNamed, 2
		}
		return tEqual, 1
	case '!':
		if next == '=' {
			return tNotEqual, 2
		}
		return tOther, 1
	case '$', '%', '\\':
		return tOther, 1
	}
	return tOther, 0
}
