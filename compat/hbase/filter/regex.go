package filter

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2"

	"github.com/trestledb/trestle/compat/hbase/pb"
)

// The flags of java.util.regex.Pattern.
const (
	flagUnixLines   = 0x01
	flagFold        = 0x02
	flagComments    = 0x04
	flagMultiline   = 0x08
	flagLiteral     = 0x10
	flagDotAll      = 0x20
	flagUnicodeFold = 0x40
)

// matchTimeout bounds one match of a pattern that Go's own engine, which is
// linear, cannot express.
const matchTimeout = time.Second

// maxPattern bounds a pattern's bytes.
const maxPattern = 64 << 10

// regexComparator is RegexStringComparator: equal to values in which the
// pattern is found. Patterns are Java's; both of HBase's engines, java and
// joni, are taken for the first.
type regexComparator struct {
	linear *regexp.Regexp
	// back is there instead of linear for what looks around or refers back, and
	// beside it for word boundaries, which Java sees in all scripts.
	back    *regexp2.Regexp
	charset charset
}

type charset uint8

const (
	utf8Charset charset = iota
	latin1
	ascii
)

func newRegexComparator(p *pb.RegexStringComparator, d *decoder) (Comparator, error) {
	if e := p.GetEngine(); p.Engine != nil && e != "JAVA" && e != "JONI" {
		return nil, invalid("no regular expression engine %q", e)
	}
	c := &regexComparator{}
	switch strings.ToUpper(p.GetCharset()) {
	case "", "UTF-8", "UTF8":
	case "ISO-8859-1", "ISO8859-1", "ISO8859_1", "ISO_8859-1", "ISO_8859_1", "LATIN1", "L1":
		c.charset = latin1
	case "US-ASCII", "ASCII", "ISO646-US":
		c.charset = ascii
	default:
		return nil, invalid("java.nio.charset.UnsupportedCharsetException: %s", p.GetCharset())
	}
	if len(p.GetPattern()) > maxPattern {
		return nil, invalid("a pattern of %d bytes", len(p.GetPattern()))
	}
	if err := d.count(letterBytes * int64(len(p.GetPattern()))); err != nil {
		return nil, err
	}
	t := translator{in: []rune(p.GetPattern()), flags: int(p.GetPatternFlags()), d: d}
	out, err := t.translate()
	if t.full != nil {
		return nil, t.full
	}
	if err != nil {
		return nil, invalid("java.util.regex.PatternSyntaxException: %v: %s", err, p.GetPattern())
	}
	if err := d.count(t.program + letterBytes*int64(len(out))); err != nil {
		return nil, err
	}
	if !t.back {
		c.linear, err = regexp.Compile(out)
	}
	if t.back || t.boundary || err != nil {
		// Go's engine also refuses to repeat something more than maxRepeat times.
		if c.back, err = regexp2.Compile(out, regexp2.None); err != nil {
			return nil, invalid("java.util.regex.PatternSyntaxException: %v: %s", err, p.GetPattern())
		}
		c.back.MatchTimeout = matchTimeout
	}
	return c, nil
}

func (c *regexComparator) compareTo(value []byte) int {
	if c.charset != utf8Charset && !isASCII(value) {
		runes := make([]rune, len(value))
		for i, b := range value {
			runes[i] = rune(b)
			if c.charset == ascii && b >= utf8.RuneSelf {
				runes[i] = utf8.RuneError
			}
		}
		value = []byte(string(runes))
	}
	found := false
	if c.linear != nil && (c.back == nil || isASCII(value)) {
		found = c.linear.Match(value)
	} else {
		var err error
		if found, err = c.back.MatchString(string(value)); err != nil {
			fail("the regular expression took longer than %v", matchTimeout) // the only error; its text has all of the value
		}
	}
	if found {
		return 0
	}
	return 1
}

// A translator writes a Java pattern in what Go's engine and regexp2
// understand alike, with every class spelled out.
type translator struct {
	in    []rune
	pos   int
	flags int
	out   strings.Builder
	back  bool // the result needs an engine that backtracks
	// boundary is set if the result has a word boundary.
	boundary bool
	work     int // characters looked at one by one, for classes
	depth    int
	lead     string   // what comes before the atom at hand
	names    []string // of groups, "" for those without one

	// program is about what out takes, compiled by an engine that writes repetitions
	// out.
	program int64
	d       *decoder
	full    error // of d
}

const (
	maxGroups = 100     // nested
	maxRepeat = 1000    // of Go's engine
	maxWork   = 4 << 20 // of a translator
)

// What there is of a pattern while it is compiled, in bytes.
const (
	letterBytes   = 8   // of a byte of it, as Java or Go write it
	spanBytes     = 32  // of a span of a class, until it is written
	pieceBytes    = 128 // of an atom, and of a quantifier
	maxPieceBytes = 1 << 30
)

// spend accounts for looking at each character of a set, and for the set.
func (t *translator) spend(s set) error {
	if t.full = t.d.count(spanBytes * int64(len(s))); t.full != nil {
		return t.full
	}
	for _, r := range s {
		t.work += int(r.hi-r.lo) + 1
	}
	if t.work > maxWork {
		return errors.New("the pattern's classes are too large")
	}
	return nil
}

func (t *translator) has(flag int) bool { return t.flags&flag != 0 }

func (t *translator) translate() (out string, err error) {
	const known = flagUnixLines | flagFold | flagComments | flagMultiline | flagLiteral | flagDotAll | flagUnicodeFold
	if t.flags&^known != 0 {
		return "", fmt.Errorf("Unknown flag 0x%x", t.flags&^known)
	}
	if t.has(flagLiteral) {
		for _, r := range t.in {
			t.literal(r)
		}
		return t.out.String(), nil
	}
	if err := t.alternatives(); err != nil {
		return "", err
	}
	if t.pos < len(t.in) {
		return "", fmt.Errorf("Unmatched closing ')' near index %d", t.pos)
	}
	return t.out.String(), nil
}

func (t *translator) peek() rune {
	if t.pos < len(t.in) {
		return t.in[t.pos]
	}
	return -1
}

func (t *translator) at(s string) bool {
	return strings.HasPrefix(string(t.in[t.pos:min(len(t.in), t.pos+len(s))]), s)
}

func (t *translator) skip(s string) bool {
	if !t.at(s) {
		return false
	}
	t.pos += len(s)
	return true
}

// alternatives reads up to the closing parenthesis or the end. Flags that are
// set inside hold up to there.
func (t *translator) alternatives() error {
	flags := t.flags
	defer func() { t.flags = flags }()
	for {
		t.blanks()
		switch t.peek() {
		case -1, ')':
			return nil
		case '|':
			t.pos++
			t.program += pieceBytes
			t.out.WriteByte('|')
		default:
			if err := t.piece(); err != nil {
				return err
			}
		}
	}
}

// blanks passes over comments.
func (t *translator) blanks() {
	for t.has(flagComments) {
		switch c := t.peek(); {
		case strings.ContainsRune(" \t\n\x0b\f\r", c) && c >= 0:
			t.pos++
		case c == '#':
			for t.peek() != -1 && t.peek() != '\n' {
				t.pos++
			}
		default:
			return
		}
	}
}

// piece reads an atom with its quantifier.
func (t *translator) piece() error {
	outer, before := t.out, t.program
	t.out, t.program = strings.Builder{}, 0
	repeatable, err := t.atom()
	atom, once := t.out.String(), min(t.program+pieceBytes, maxPieceBytes)
	t.out, t.program = outer, before+once
	t.out.WriteString(t.lead)
	t.lead = ""
	if err != nil {
		return err
	}
	t.blanks()
	start := t.pos
	switch c := t.peek(); c {
	case '*', '+', '?':
		t.pos++
		t.program += pieceBytes
	case '{':
		t.pos++
		least, digits := t.count()
		if digits == 0 || digits > 9 {
			return fmt.Errorf("Illegal repetition near index %d", start)
		}
		most := least
		if t.skip(",") {
			if most, digits = t.count(); digits > 9 {
				return fmt.Errorf("Illegal repetition range near index %d", start)
			}
		}
		// What is optional is a branch each time. Nothing is written out so often that
		// Go's engine refuses it.
		if t.program += pieceBytes; max(least, most) <= maxRepeat {
			t.program = before + min(least*once+max(most-least, 1)*(once+pieceBytes), maxPieceBytes)
		}
		if !t.skip("}") {
			return fmt.Errorf("Unclosed counted closure near index %d", t.pos)
		}
	default:
		t.out.WriteString(atom)
		return nil
	}
	if !repeatable {
		return fmt.Errorf("Dangling meta character near index %d", start)
	}
	quantifier := string(t.in[start:t.pos])
	switch {
	case t.skip("?"):
		quantifier += "?"
	case t.skip("+"):
		// It gives nothing back: an atomic group.
		t.back = true
		t.out.WriteString("(?>(?:" + atom + ")" + quantifier + ")")
		return nil
	}
	t.out.WriteString("(?:" + atom + ")" + quantifier)
	return nil
}

// count reads a number of at most nine digits.
func (t *translator) count() (n int64, digits int) {
	for ; digits < 10 && '0' <= t.peek() && t.peek() <= '9'; digits++ {
		n = 10*n + int64(t.peek()-'0')
		t.pos++
	}
	return n, digits
}

// The line ends of Java, and what they are with UNIX_LINES.
const (
	lineEnds     = "\n\r\u0085\u2028\u2029"
	unixLineEnds = "\n"
)

func (t *translator) lineEnds() string {
	if t.has(flagUnixLines) {
		return unixLineEnds
	}
	return lineEnds
}

// atom writes one atom and tells whether it can be repeated.
func (t *translator) atom() (bool, error) {
	c := t.peek()
	t.pos++
	switch c {
	case '(':
		return t.group()
	case '[':
		s, err := t.class()
		t.set(s)
		return true, err
	case '.':
		if t.has(flagDotAll) {
			t.out.WriteString("(?s:.)")
		} else {
			t.out.WriteString("[^" + t.lineEnds() + "]")
		}
	case '^':
		if !t.has(flagMultiline) {
			t.out.WriteString(`\A`)
			break
		}
		t.back = true
		t.out.WriteString(`(?:(?:\A|(?<=[` + t.lineEnds() + `])(?<!\r(?=\n)))(?!\z))`)
	case '$':
		t.dollar(t.has(flagMultiline))
	case '{':
		return false, fmt.Errorf("Illegal repetition near index %d", t.pos-1)
	case '*', '+', '?':
		return false, fmt.Errorf("Dangling meta character %q near index %d", c, t.pos-1)
	case '\\':
		return true, t.escape()
	default:
		t.literal(c)
	}
	return true, nil
}

// dollar writes the end of the text, or of its last line. Where nothing can
// follow it, that line end is as good read as looked at.
func (t *translator) dollar(multiline bool) {
	end, notInside := `(?:\r\n|[`+lineEnds+`])`, `(?<!\r(?=\n))`
	if t.has(flagUnixLines) {
		end, notInside = `\n`, ""
	}
	rest := string(t.in[t.pos:])
	switch {
	case multiline:
		t.back = true
		t.out.WriteString(`(?:(?=[` + t.lineEnds() + `])` + notInside + `|\z)`)
	case strings.Trim(rest, ")") == "" || t.depth == 0 && rest[0] == '|':
		t.out.WriteString("(?:" + end + `?\z)`)
	default:
		t.back = true
		t.out.WriteString(`(?:(?=` + end + `?\z)` + notInside + `)`)
	}
}

// literal writes one character, with its other cases if they count.
func (t *translator) literal(r rune) {
	if t.has(flagFold) {
		s := set{{r, r}}.fold(t.has(flagUnicodeFold))
		if len(s) > 1 || s[0].lo != s[0].hi {
			t.set(s)
			return
		}
	}
	writeRune(&t.out, r)
}

// writeRune writes a character that means itself, also inside a class.
func writeRune(b *strings.Builder, r rune) {
	if r < utf8.RuneSelf && !('0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z') {
		fmt.Fprintf(b, `\x%02x`, r)
		return
	}
	b.WriteRune(r)
}

func (t *translator) set(s set) {
	if len(s) == 0 {
		t.out.WriteString(`[^\x00-\x{10ffff}]`)
		return
	}
	t.out.WriteByte('[')
	for _, r := range s {
		writeRune(&t.out, r.lo)
		if r.hi > r.lo {
			t.out.WriteByte('-')
			writeRune(&t.out, r.hi)
		}
	}
	t.out.WriteByte(']')
}

// group reads what follows an opening parenthesis.
func (t *translator) group() (bool, error) {
	if t.depth++; t.depth > maxGroups {
		return false, fmt.Errorf("groups nested more than %d deep", maxGroups)
	}
	defer func() { t.depth-- }()
	open, repeatable := "(", true
	switch {
	case t.skip("?:"):
		open = "(?:"
	case t.skip("?="):
		open, t.back = "(?=", true
	case t.skip("?!"):
		open, t.back = "(?!", true
	case t.skip("?<="):
		open, t.back = "(?<=", true
	case t.skip("?<!"):
		open, t.back = "(?<!", true
	case t.skip("?>"):
		open, t.back = "(?>", true
	case t.skip("?<"):
		start := t.pos
		for t.peek() < utf8.RuneSelf && (unicode.IsLetter(t.peek()) || t.pos > start && unicode.IsDigit(t.peek())) {
			t.pos++
		}
		name := string(t.in[start:t.pos])
		if name == "" || slices.Contains(t.names, name) || !t.skip(">") {
			return false, fmt.Errorf("bad group name near index %d", start)
		}
		t.names = append(t.names, name)
	case t.skip("?"):
		flags := t.flags
		if err := t.inlineFlags(); err != nil {
			return false, err
		}
		if t.skip(")") {
			return false, nil // they hold up to the end of the group around
		}
		if !t.skip(":") {
			return false, fmt.Errorf("Unknown inline modifier near index %d", t.pos)
		}
		defer func() { t.flags = flags }()
		open = "(?:"
	default:
		t.names = append(t.names, "")
	}
	t.out.WriteString(open)
	if err := t.alternatives(); err != nil {
		return false, err
	}
	if !t.skip(")") {
		return false, fmt.Errorf("Unclosed group near index %d", t.pos)
	}
	t.out.WriteByte(')')
	return repeatable, nil
}

func (t *translator) inlineFlags() error {
	on := true
	for {
		flag := 0
		switch t.peek() {
		case '-':
			if !on {
				return fmt.Errorf("Unknown inline modifier near index %d", t.pos)
			}
			on = false
		case 'i':
			flag = flagFold
		case 'm':
			flag = flagMultiline
		case 's':
			flag = flagDotAll
		case 'd':
			flag = flagUnixLines
		case 'u':
			flag = flagUnicodeFold
		case 'x':
			flag = flagComments
		case ')', ':':
			return nil
		default:
			return fmt.Errorf("Unknown inline modifier near index %d", t.pos)
		}
		t.pos++
		if on {
			t.flags |= flag
		} else {
			t.flags &^= flag
		}
	}
}

// escape reads what follows a backslash outside of a class.
func (t *translator) escape() error {
	switch c := t.peek(); c {
	case 'A', 'G': // the first match begins where the text does
		t.pos++
		t.out.WriteString(`\A`)
	case 'z':
		t.pos++
		t.out.WriteString(`\z`)
	case 'Z':
		t.pos++
		t.dollar(false)
	case 'b', 'B':
		t.pos++
		if t.at("{g}") {
			return fmt.Errorf("Unsupported boundary near index %d", t.pos)
		}
		t.boundary = true
		t.out.WriteString(`\` + string(c))
	case 'R':
		t.pos++
		t.out.WriteString(`(?:\r\n|[\n\x0b\f\r\x{85}\x{2028}\x{2029}])`)
	case 'Q':
		t.pos++
		for t.pos < len(t.in) && !t.skip(`\E`) {
			// A quantifier is for the last one alone.
			t.lead += t.out.String()
			t.out.Reset()
			t.program += pieceBytes
			t.literal(t.in[t.pos])
			t.pos++
		}
	case 'k':
		t.pos++
		for _, name := range t.names {
			if name != "" && t.skip("<"+name+">") {
				t.reference(slices.Index(t.names, name) + 1)
				return nil
			}
		}
		return fmt.Errorf("Unknown named reference near index %d", t.pos)
	case '1', '2', '3', '4', '5', '6', '7', '8', '9':
		// As many digits as name a group that is there.
		n := 0
		for {
			d := t.peek() - '0'
			if d < 0 || d > 9 || n > 0 && n*10+int(d) > len(t.names) {
				break
			}
			n = n*10 + int(d)
			t.pos++
		}
		if n > len(t.names) {
			t.set(nil) // a group that is not there never matches
			return nil
		}
		t.reference(n)
	default:
		s, err := t.classEscape()
		if err != nil {
			return err
		}
		if len(s) == 1 && s[0].lo == s[0].hi {
			t.literal(s[0].lo)
		} else {
			t.set(s)
		}
	}
	return nil
}

func (t *translator) reference(n int) {
	t.back = true
	if t.has(flagFold) {
		fmt.Fprintf(&t.out, `(?i:\%d)`, n)
	} else {
		fmt.Fprintf(&t.out, `(?:\%d)`, n)
	}
}

// A span is a range of characters, both ends included; a set is a sorted list
// of disjoint spans.
type span struct{ lo, hi rune }
type set []span

func normal(s set) set {
	slices.SortFunc(s, func(a, b span) int { return int(a.lo) - int(b.lo) })
	out := s[:0]
	for _, r := range s {
		if n := len(out); n > 0 && r.lo <= out[n-1].hi+1 {
			out[n-1].hi = max(out[n-1].hi, r.hi)
		} else {
			out = append(out, r)
		}
	}
	return out
}

func (s set) not() set {
	var out set
	next := rune(0)
	for _, r := range s {
		if r.lo > next {
			out = append(out, span{next, r.lo - 1})
		}
		next = r.hi + 1
	}
	if next <= unicode.MaxRune {
		out = append(out, span{next, unicode.MaxRune})
	}
	return out
}

func (s set) and(o set) set { return normal(append(s.not(), o.not()...)).not() }

// fold adds the other cases: of ASCII letters, or of all.
func (s set) fold(all bool) set {
	out := slices.Clone(s)
	for _, r := range s {
		if !all {
			r.hi = min(r.hi, 'z')
		}
		for c := r.lo; c <= r.hi; c++ {
			if all {
				for o := unicode.SimpleFold(c); o != c; o = unicode.SimpleFold(o) {
					out = append(out, span{o, o})
				}
			} else if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' {
				out = append(out, span{c ^ 0x20, c ^ 0x20})
			}
		}
	}
	return normal(out)
}

func chars(list string) set {
	var s set
	for _, r := range list {
		s = append(s, span{r, r})
	}
	return normal(s)
}

var named = map[string]set{
	"d": {{'0', '9'}},
	"w": {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
	"s": chars(" \t\n\x0b\f\r"),
	"h": chars(" \t\u00a0\u1680\u180e\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"),
	"v": chars("\n\x0b\f\r\u0085\u2028\u2029"),

	"Lower":  {{'a', 'z'}},
	"Upper":  {{'A', 'Z'}},
	"ASCII":  {{0, 0x7f}},
	"Alpha":  {{'A', 'Z'}, {'a', 'z'}},
	"Digit":  {{'0', '9'}},
	"Alnum":  {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}},
	"Punct":  {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}},
	"Graph":  {{'!', '~'}},
	"Print":  {{' ', '~'}},
	"Blank":  chars(" \t"),
	"Cntrl":  {{0, 0x1f}, {0x7f, 0x7f}},
	"XDigit": {{'0', '9'}, {'A', 'F'}, {'a', 'f'}},
	"Space":  chars(" \t\n\x0b\f\r"),
}

// property returns the set of \p{name}.
func property(name string) (set, bool) {
	if s, ok := named[name]; ok && len(name) > 1 {
		return s, true
	}
	if rest, ok := strings.CutPrefix(name, "Is"); ok {
		name = rest
	}
	tables := []*unicode.RangeTable{unicode.Categories[name]}
	if name == "LC" {
		tables = []*unicode.RangeTable{unicode.Lu, unicode.Ll, unicode.Lt}
	} else if tables[0] == nil {
		tables[0] = unicode.Scripts[name]
	}
	if tables[0] == nil {
		return nil, false
	}
	var s set
	for _, table := range tables {
		for _, r := range table.R16 {
			if r.Stride == 1 {
				s = append(s, span{rune(r.Lo), rune(r.Hi)})
				continue
			}
			for c := rune(r.Lo); c <= rune(r.Hi); c += rune(r.Stride) {
				s = append(s, span{c, c})
			}
		}
		for _, r := range table.R32 {
			if r.Stride == 1 {
				s = append(s, span{rune(r.Lo), rune(r.Hi)})
				continue
			}
			for c := rune(r.Lo); c <= rune(r.Hi); c += rune(r.Stride) {
				s = append(s, span{c, c})
			}
		}
	}
	return normal(s), true
}

// classEscape reads what follows a backslash and stands for characters.
func (t *translator) classEscape() (set, error) {
	c := t.peek()
	t.pos++
	one := func(r rune) (set, error) { return set{{r, r}}, nil }
	switch c {
	case -1:
		return nil, fmt.Errorf("Unexpected internal error near index %d", t.pos-1)
	case 't':
		return one('\t')
	case 'n':
		return one('\n')
	case 'r':
		return one('\r')
	case 'f':
		return one('\f')
	case 'a':
		return one(7)
	case 'e':
		return one(27)
	case 'd', 'w', 's', 'h', 'v':
		return named[string(c)], nil
	case 'D', 'W', 'S', 'H', 'V':
		return named[string(unicode.ToLower(c))].not(), nil
	case 'c':
		r := t.peek()
		if r < 0 {
			return nil, fmt.Errorf("Illegal control escape sequence near index %d", t.pos)
		}
		t.pos++
		return one(r ^ 64)
	case '0':
		return t.number(8, 1, 3, 0o377)
	case 'x':
		if t.skip("{") {
			s, err := t.number(16, 1, 6, unicode.MaxRune)
			if err == nil && !t.skip("}") {
				err = fmt.Errorf("Unclosed hexadecimal escape sequence near index %d", t.pos)
			}
			return s, err
		}
		return t.number(16, 2, 2, 0xff)
	case 'u':
		return t.number(16, 4, 4, 0xffff)
	case 'p', 'P':
		name := string(t.peek())
		if t.skip("{") {
			end := slices.Index(t.in[t.pos:], '}')
			if end < 0 {
				return nil, fmt.Errorf("Unclosed character family near index %d", t.pos)
			}
			name = string(t.in[t.pos : t.pos+end])
			t.pos += end
		}
		t.pos++
		if t.has(flagFold) {
			switch strings.TrimPrefix(name, "Is") {
			case "Lower", "Upper":
				name = "Alpha"
			case "Lu", "Ll", "Lt":
				name = "LC"
			}
		}
		s, ok := property(name)
		if !ok {
			return nil, fmt.Errorf("Unknown character property name {%s} near index %d", name, t.pos)
		}
		if err := t.spend(s); err != nil {
			return nil, err
		}
		if c == 'P' {
			s = s.not()
		}
		return s, nil
	}
	if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' {
		return nil, fmt.Errorf("Illegal/unsupported escape sequence near index %d", t.pos-1)
	}
	return one(c)
}

// number reads at least least digits and at most most, of a number up to top.
func (t *translator) number(radix, least, most int, top rune) (set, error) {
	var v rune
	n := 0
	for ; n < most; n++ {
		d := strings.IndexRune("0123456789abcdef", unicode.ToLower(t.peek()))
		if d < 0 || d >= radix || v*rune(radix)+rune(d) > top {
			break
		}
		v = v*rune(radix) + rune(d)
		t.pos++
	}
	if n < least {
		return nil, fmt.Errorf("Illegal hexadecimal or octal escape sequence near index %d", t.pos)
	}
	return set{{v, v}}, nil
}

// class reads what follows an opening bracket.
func (t *translator) class() (set, error) {
	if t.depth++; t.depth > maxGroups {
		return nil, fmt.Errorf("classes nested more than %d deep", maxGroups)
	}
	defer func() { t.depth-- }()
	negated := t.skip("^")
	var s, result set
	first, anded := true, false
	finish := func() set {
		if anded {
			s = result.and(s)
		}
		if negated {
			s = s.not()
		}
		return s
	}
	for ; ; first = false {
		t.blanks()
		switch c := t.peek(); {
		case c == -1:
			return nil, fmt.Errorf("Unclosed character class near index %d", t.pos)
		case c == ']' && !first:
			t.pos++
			return finish(), nil
		case c == '[':
			t.pos++
			in, err := t.class()
			if err != nil {
				return nil, err
			}
			s = normal(append(s, in...))
		case t.at("&&"):
			for t.skip("&") {
				continue
			}
			if anded {
				s = result.and(s)
			}
			result, s, anded = s, nil, true
			if t.peek() == ']' {
				return nil, fmt.Errorf("Bad intersection near index %d", t.pos)
			}
		default:
			in, err := t.classRange()
			if err != nil {
				return nil, err
			}
			if t.has(flagFold) {
				if err := t.spend(in); err != nil {
					return nil, err
				}
				in = in.fold(t.has(flagUnicodeFold))
			}
			s = normal(append(s, in...))
		}
	}
}

// classRange reads a character, a range of characters, or an escape.
func (t *translator) classRange() (set, error) {
	char := func() (set, error) {
		c := t.peek()
		t.pos++
		if c != '\\' {
			return set{{c, c}}, nil
		}
		if t.skip("Q") {
			var s set
			for t.pos < len(t.in) && !t.skip(`\E`) {
				s = append(s, span{t.in[t.pos], t.in[t.pos]})
				t.pos++
			}
			return normal(s), nil
		}
		return t.classEscape()
	}
	lo, err := char()
	if err != nil || len(lo) != 1 || lo[0].lo != lo[0].hi {
		return lo, err
	}
	if !t.at("-") || t.at("-]") || t.at("-[") || t.pos+1 >= len(t.in) {
		return slices.Clone(lo), nil
	}
	t.pos++
	hi, err := char()
	if err != nil {
		return nil, err
	}
	if len(hi) != 1 || hi[0].lo != hi[0].hi || hi[0].lo < lo[0].lo {
		return nil, fmt.Errorf("Illegal character range near index %d", t.pos)
	}
	return set{{lo[0].lo, hi[0].lo}}, nil
}

// Pattern returns what tells whether a text matches a Java pattern, whole, as
// Pattern.matcher(text).matches() does; an *Error if the pattern is none. take is
// asked for memory as Options.Take is.
func Pattern(pattern string, take func(bytes int64) error) (func(text string) bool, error) {
	d := &decoder{take: take}
	// A pattern may end in the middle of a quotation, or be none by itself.
	if _, err := newRegexComparator(&pb.RegexStringComparator{Pattern: &pattern, PatternFlags: new(int32)}, d); err != nil {
		return nil, err
	}
	whole := `\A(?:` + pattern + `)\z`
	if strings.Count(pattern, `\Q`) > strings.Count(pattern, `\E`) {
		whole = `\A(?:` + pattern + `\E)\z`
	}
	c, err := newRegexComparator(&pb.RegexStringComparator{Pattern: &whole, PatternFlags: new(int32)}, d)
	if err != nil {
		return nil, err
	}
	return func(text string) bool {
		n, err := Compare(c, []byte(text))
		return err == nil && n == 0
	}, nil
}
