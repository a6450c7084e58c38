package functions

import (
	"errors"
	"regexp"
	"regexp/syntax"
	"strings"

	"rsc.io/binaryregexp"
	binarysyntax "rsc.io/binaryregexp/syntax"

	"github.com/trestledb/trestle/engine/query/types"
)

const (
	// maxPattern is how long a regular expression may be, in bytes.
	maxPattern = 64 << 10
	// maxProgram is how many instructions a regular expression may have, with repetitions
	// counted out. One takes 40 bytes.
	maxProgram = 1 << 16
	// maxEffort is how many steps one search may take at most, as length of the text times
	// instructions: some seconds.
	maxEffort = 1 << 30
)

// A regex is a compiled regular expression, of characters or of bytes.
type regex struct {
	pattern string
	groups  int
	size    int // of the program, in instructions
	// literal is set if the pattern is plain text, which matches itself. must is text that
	// each match contains, "" if none is known: to look for it takes a tenth of a search.
	literal *string
	must    string
	first   matcherOf
	// later searches behind the beginning of a text, if the pattern looks at what comes
	// before a match. It takes the text from one character before where it searches, and its
	// first group is the match.
	later matcherOf
	bytes bool
}

// A matcherOf is the part of regexp.Regexp and binaryregexp.Regexp that is used here.
type matcherOf interface {
	MatchString(s string) bool
	FindStringSubmatchIndex(s string) []int
}

// reasons has the words that GoogleSQL has for a wrong pattern.
var reasons = map[string]string{
	string(syntax.ErrMissingParen):          "missing )",
	string(syntax.ErrUnexpectedParen):       "unexpected )",
	string(syntax.ErrMissingBracket):        "missing ]",
	string(syntax.ErrMissingRepeatArgument): "no argument for repetition operator",
	string(syntax.ErrInvalidRepeatOp):       "bad repetition operator",
	string(syntax.ErrInvalidRepeatSize):     "invalid repetition size",
	string(syntax.ErrTrailingBackslash):     "trailing \\",
	string(syntax.ErrInvalidPerlOp):         "invalid perl operator",
	string(syntax.ErrInvalidNamedCapture):   "invalid named capture group",
	string(syntax.ErrInvalidCharClass):      "invalid character class",
	string(syntax.ErrInvalidCharRange):      "invalid character class range",
	string(syntax.ErrInvalidEscape):         "invalid escape sequence",
	string(syntax.ErrInvalidUTF8):           "invalid UTF-8",
}

func badPattern(code, expr string) error {
	reason, ok := reasons[code]
	switch {
	case !ok:
		return Errorf("Cannot parse regular expression: pattern too large - compile failed")
	case expr == "" || code == string(syntax.ErrTrailingBackslash):
		return Errorf("Cannot parse regular expression: %s", reason)
	}
	return Errorf("Cannot parse regular expression: %s: %s", reason, toValidUTF8(expr))
}

func compileRegex(pattern string, bytes bool) (*regex, error) {
	if len(pattern) > maxPattern {
		return nil, Errorf("Cannot parse regular expression: pattern too large - compile failed")
	}
	pattern = strings.Clone(pattern)
	if bytes {
		return compileBinary(pattern)
	}
	tree, err := syntax.Parse(pattern, syntax.Perl)
	if e := (*syntax.Error)(nil); errors.As(err, &e) {
		return nil, badPattern(string(e.Code), e.Expr)
	}
	if err != nil {
		return nil, badPattern("", "")
	}
	r := &regex{pattern: pattern, groups: tree.MaxCap(), size: regexSize(tree), must: string(required(tree))}
	if r.size > maxProgram {
		return nil, badPattern("", "")
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, badPattern("", "")
	}
	r.first = re
	if prefix, complete := re.LiteralPrefix(); complete && r.groups == 0 && !looksBehind(tree) {
		r.literal = &prefix
	}
	if looksBehind(tree) {
		noBegin(tree)
		if r.later, err = regexp.Compile(`\A(?s:.)(?s:.*?)(` + tree.String() + `)`); err != nil {
			return nil, badPattern("", "")
		}
	}
	return r, nil
}

func regexSize(re *syntax.Regexp) int {
	n := 1
	switch re.Op {
	case syntax.OpLiteral:
		n = len(re.Rune)
	case syntax.OpCharClass:
		// Each range of a class may take some instructions' room.
		n = 1 + len(re.Rune)/8
	}
	for _, sub := range re.Sub {
		n = min(n+regexSize(sub), maxProgram+1)
	}
	if re.Op == syntax.OpRepeat {
		n = min(n*max(re.Min, re.Max, 1), maxProgram+1)
	}
	return n
}

// required returns the longest text that it finds in all matches of re.
func required(re *syntax.Regexp) []rune {
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase == 0 {
			return re.Rune
		}
	case syntax.OpCapture, syntax.OpPlus:
		return required(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return required(re.Sub[0])
		}
	case syntax.OpConcat:
		var best []rune
		for _, sub := range re.Sub {
			if text := required(sub); len(text) > len(best) {
				best = text
			}
		}
		return best
	}
	return nil
}

// looksBehind tells whether what comes before a match decides on it.
func looksBehind(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpBeginLine, syntax.OpBeginText, syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return true
	}
	for _, sub := range re.Sub {
		if looksBehind(sub) {
			return true
		}
	}
	return false
}

// noBegin makes \A match nowhere.
func noBegin(re *syntax.Regexp) {
	if re.Op == syntax.OpBeginText {
		re.Op = syntax.OpNoMatch
	}
	for _, sub := range re.Sub {
		noBegin(sub)
	}
}

// compileBinary does the same with the package for bytes, whose types are its own.
func compileBinary(pattern string) (*regex, error) {
	text := latin1(pattern)
	tree, err := binarysyntax.Parse(text, binarysyntax.Perl)
	if e := (*binarysyntax.Error)(nil); errors.As(err, &e) {
		return nil, badPattern(string(e.Code), e.Expr)
	}
	if err != nil {
		return nil, badPattern("", "")
	}
	r := &regex{pattern: pattern, groups: tree.MaxCap(), size: binarySize(tree), bytes: true}
	if runes, err := syntax.Parse(text, syntax.Perl); err == nil {
		// A text of the characters up to U+00FF is one of bytes.
		must := required(runes)
		b := make([]byte, 0, len(must))
		for _, c := range must {
			b = append(b, byte(c))
		}
		r.must = string(b)
	}
	if r.size > maxProgram {
		return nil, badPattern("", "")
	}
	re, err := binaryregexp.Compile(text)
	if err != nil {
		return nil, badPattern("", "")
	}
	r.first = re
	if prefix, complete := re.LiteralPrefix(); complete && r.groups == 0 && !binaryLooksBehind(tree) && isASCII(text) {
		r.literal = &prefix
	}
	if binaryLooksBehind(tree) {
		binaryNoBegin(tree)
		if r.later, err = binaryregexp.Compile(`\A(?s:.)(?s:.*?)(` + tree.String() + `)`); err != nil {
			return nil, badPattern("", "")
		}
	}
	return r, nil
}

// latin1 returns s with each of its bytes as the character of that code, as which the
// package for bytes takes them.
func latin1(s string) string {
	if isASCII(s) {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		b.WriteRune(rune(s[i]))
	}
	return b.String()
}

func binarySize(re *binarysyntax.Regexp) int {
	n := 1
	switch re.Op {
	case binarysyntax.OpLiteral:
		n = len(re.Rune)
	case binarysyntax.OpCharClass:
		n = 1 + len(re.Rune)/8
	}
	for _, sub := range re.Sub {
		n = min(n+binarySize(sub), maxProgram+1)
	}
	if re.Op == binarysyntax.OpRepeat {
		n = min(n*max(re.Min, re.Max, 1), maxProgram+1)
	}
	return n
}

func binaryLooksBehind(re *binarysyntax.Regexp) bool {
	switch re.Op {
	case binarysyntax.OpBeginLine, binarysyntax.OpBeginText, binarysyntax.OpWordBoundary, binarysyntax.OpNoWordBoundary:
		return true
	}
	for _, sub := range re.Sub {
		if binaryLooksBehind(sub) {
			return true
		}
	}
	return false
}

func binaryNoBegin(re *binarysyntax.Regexp) {
	if re.Op == binarysyntax.OpBeginText {
		re.Op = binarysyntax.OpNoMatch
	}
	for _, sub := range re.Sub {
		binaryNoBegin(sub)
	}
}

// regexOf returns the pattern of a Call, compiled: that of the last row if it is the same.
func regexOf(c *Call, pattern string) (*regex, error) {
	if r, ok := c.State.(*regex); ok && r.pattern == pattern {
		return r, nil
	}
	r, err := compileRegex(pattern, c.Types[0].Kind == types.Bytes)
	if err != nil {
		return nil, err
	}
	c.State = r
	return r, nil
}

// afford refuses a text for which the pattern could take too long.
func (r *regex) afford(s string) error {
	if int64(len(s))*int64(r.size) > maxEffort {
		return Errorf("Regular expression of %d instructions is too complex for an input of %d bytes", r.size, len(s))
	}
	return nil
}

func (r *regex) contains(s string) bool {
	if r.literal != nil {
		return strings.Contains(s, *r.literal)
	}
	if r.must != "" && !strings.Contains(s, r.must) {
		return false
	}
	return r.first.MatchString(s)
}

// find returns the indexes of the first match at or behind at, and of its groups, or
// nil.
func (r *regex) find(s string, at int) []int {
	if r.must != "" && !strings.Contains(s[at:], r.must) {
		return nil
	}
	if at == 0 || r.later == nil {
		m := r.first.FindStringSubmatchIndex(s[at:])
		shift(m, at)
		return m
	}
	start := at - 1
	if !r.bytes {
		start, _ = offsetFromEnd(s[:at], 1)
	}
	m := r.later.FindStringSubmatchIndex(s[start:])
	if m == nil {
		return nil
	}
	m = m[2:]
	shift(m, start)
	return m
}

func shift(m []int, by int) {
	for i := range m {
		if m[i] >= 0 {
			m[i] += by
		}
	}
}

// matches calls yield for the matches of s in turn, which do not overlap; next is where
// the search goes on. Behind an empty match that is one character on. A match that ends
// where s does is the last.
func (r *regex) matches(c *Call, s string, yield func(m []int, next int) bool) error {
	if err := r.afford(s); err != nil {
		return err
	}
	for at := 0; ; {
		m := r.find(s, at)
		if m == nil {
			return nil
		}
		at = m[1]
		if m[0] == m[1] && at < len(s) {
			at += nextChar(s[at:], r.bytes)
		}
		if !yield(m, at) || at >= len(s) {
			return nil
		}
		if err := interrupted(c); err != nil {
			return err
		}
	}
}

// interrupted returns why the query has to end, or nil.
func interrupted(c *Call) error {
	if c.Ctx == nil {
		return nil
	}
	return c.Ctx.Err()
}

// oneGroup refuses patterns of which it is not clear what they extract.
func (r *regex) oneGroup() error {
	if r.groups > 1 {
		return Errorf("Regular expressions passed into extraction functions must not have more than 1 capturing group")
	}
	return nil
}

// extracted returns the part of a match that extraction is after: its group, if the
// pattern has one. It returns false if the group did not take part.
func (r *regex) extracted(m []int) (start, end int, ok bool) {
	if r.groups == 1 {
		return m[2], m[3], m[2] >= 0
	}
	return m[0], m[1], true
}

func evalRegexpContains(c *Call, args []types.Value) (types.Value, error) {
	r, err := regexOf(c, args[1].Str)
	if err != nil {
		return types.Null, err
	}
	if err := r.afford(args[0].Str); err != nil {
		return types.Null, err
	}
	return types.NewBool(r.contains(args[0].Str)), nil
}

func regexpContainsKernel(c *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	if mergeNulls(out, sel, n, args...) == allNulls {
		return nil
	}
	a, pattern := args[0], args[1]
	return each(sel, n, func(i int) error {
		if out.Null != nil && out.Null[i] {
			return nil
		}
		r, err := regexOf(c, pattern.Strs[pattern.At(i)])
		if err != nil {
			return err
		}
		s := a.Strs[a.At(i)]
		if err := r.afford(s); err != nil {
			return err
		}
		out.Ints[i] = boolInt(r.contains(s))
		return nil
	})
}

// searchFrom reads the position and the occurrence of REGEXP_EXTRACT and REGEXP_INSTR
// and returns the text from the position on, and how many units were cut off. ok is false
// if the text is shorter.
func searchFrom(c *Call, args []types.Value) (s string, position, occurrence int64, ok bool, err error) {
	s, position, occurrence = args[0].Str, 1, 1
	if hasArg(c, args, 2) {
		position = args[2].Int
	}
	if hasArg(c, args, 3) {
		occurrence = args[3].Int
	}
	switch {
	case position < 1:
		return "", 0, 0, false, Errorf("Position must be positive")
	case occurrence < 1:
		return "", 0, 0, false, Errorf("Occurrence must be positive")
	}
	if position > int64(len(s)) && (s != "" || position > 1) {
		return "", position, occurrence, false, nil
	}
	if c.Types[0].Kind == types.Bytes {
		return s[position-1:], position, occurrence, true, nil
	}
	// GoogleSQL compares positions with the length in bytes: behind the last character, and
	// not further, is the empty end of the text.
	at, _ := offsetOf(s, position-1)
	return s[at:], position, occurrence, true, nil
}

func evalRegexpExtract(c *Call, args []types.Value) (types.Value, error) {
	r, err := regexOf(c, args[1].Str)
	if err != nil {
		return types.Null, err
	}
	s, _, occurrence, ok, err := searchFrom(c, args)
	if err != nil || !ok {
		return types.Null, err
	}
	if err := r.oneGroup(); err != nil {
		return types.Null, err
	}
	result := types.Null
	err = r.matches(c, s, func(m []int, _ int) bool {
		if occurrence--; occurrence > 0 {
			return true
		}
		if start, end, ok := r.extracted(m); ok {
			result = types.NewString(s[start:end])
		}
		return false
	})
	return result, err
}

func evalRegexpExtractAll(c *Call, args []types.Value) (types.Value, error) {
	r, err := regexOf(c, args[1].Str)
	if err != nil {
		return types.Null, err
	}
	if err := r.oneGroup(); err != nil {
		return types.Null, err
	}
	s := args[0].Str
	list := []types.Value{}
	var full error
	err = r.matches(c, s, func(m []int, _ int) bool {
		if len(list) > 0 && len(list)%1024 == 0 {
			if full = growList(c, 1024); full != nil {
				return false
			}
		}
		part := ""
		if start, end, ok := r.extracted(m); ok {
			part = s[start:end]
		}
		list = append(list, types.NewString(part))
		return true
	})
	if err == nil {
		err = full
	}
	if err != nil {
		return types.Null, err
	}
	return types.NewList(list), nil
}

func evalRegexpInstr(c *Call, args []types.Value) (types.Value, error) {
	r, err := regexOf(c, args[1].Str)
	if err != nil {
		return types.Null, err
	}
	s, position, occurrence, ok, err := searchFrom(c, args)
	if err != nil {
		return types.Null, err
	}
	end := int64(0)
	if hasArg(c, args, 4) {
		if end = args[4].Int; end != 0 && end != 1 {
			return types.Null, Errorf("Invalid return_position_after_match.")
		}
	}
	if !ok || args[0].Str == "" || r.pattern == "" {
		return types.NewInt(0), nil
	}
	if err := r.oneGroup(); err != nil {
		return types.Null, err
	}
	result := types.NewInt(0)
	err = r.matches(c, s, func(m []int, next int) bool {
		if occurrence--; occurrence > 0 {
			return true
		}
		start, stop, ok := r.extracted(m)
		if !ok {
			return false
		}
		// GoogleSQL counts from where it would search on: of an empty match without a
		// group that is one character further.
		at := stop
		if r.groups == 0 {
			at = next
		}
		if end == 0 {
			at -= stop - start
		}
		if r.bytes {
			result.Int = int64(at) + position
		} else {
			result.Int = charLength(s[:at]) + position
		}
		return false
	})
	return result, err
}

// checkRewrite refuses a third argument of REGEXP_REPLACE that is malformed or names a
// group that the pattern does not have.
func checkRewrite(rewrite string, groups int) error {
	most := -1
	for i := 0; i < len(rewrite); i++ {
		if rewrite[i] != '\\' {
			continue
		}
		i++
		switch {
		case i == len(rewrite):
			return Errorf("Invalid REGEXP_REPLACE pattern: Rewrite schema error: '\\' not allowed at end.")
		case rewrite[i] == '\\':
		case rewrite[i] >= '0' && rewrite[i] <= '9':
			most = max(most, int(rewrite[i]-'0'))
		default:
			return Errorf("Invalid REGEXP_REPLACE pattern: Rewrite schema error: '\\' must be followed by a digit or '\\'.")
		}
	}
	if most > groups {
		return Errorf("Invalid REGEXP_REPLACE pattern: Rewrite schema requests %d matches, but the regexp only has %d parenthesized subexpressions.", most, groups)
	}
	return nil
}

func appendRewrite(dst []byte, rewrite, s string, m []int) []byte {
	for i := 0; i < len(rewrite); i++ {
		c := rewrite[i]
		if c == '\\' {
			i++
			if c = rewrite[i]; c != '\\' {
				if g := int(c - '0'); m[2*g] >= 0 {
					dst = append(dst, s[m[2*g]:m[2*g+1]]...)
				}
				continue
			}
		}
		dst = append(dst, c)
	}
	return dst
}

func evalRegexpReplace(c *Call, args []types.Value) (types.Value, error) {
	s, rewrite := args[0].Str, args[2].Str
	r, err := regexOf(c, args[1].Str)
	if err != nil {
		return types.Null, err
	}
	if err := checkRewrite(rewrite, r.groups); err != nil {
		return types.Null, err
	}
	if err := r.afford(s); err != nil {
		return types.Null, err
	}
	var out []byte
	asked, changed := 0, false
	last := -1 // where the last match ended
	for at := 0; ; {
		m := r.find(s, at)
		if m == nil {
			out = append(out, s[at:]...)
			break
		}
		changed = true
		out = append(out, s[at:m[0]]...)
		at = m[0]
		switch {
		case m[0] < m[1]:
			out = appendRewrite(out, rewrite, s, m)
			at = m[1]
		case m[0] != last:
			// An empty match counts unless it touches the one before.
			out = appendRewrite(out, rewrite, s, m)
		}
		last = m[1]
		if m[0] == m[1] {
			if at == len(s) {
				break
			}
			size := nextChar(s[at:], r.bytes)
			out = append(out, s[at:at+size]...)
			at += size
		}
		if at > len(s) {
			break
		}
		if len(out) > asked+64<<10 {
			if err := grow(c, len(out)-asked); err != nil {
				return types.Null, err
			}
			asked = len(out)
		}
		if err := interrupted(c); err != nil {
			return types.Null, err
		}
	}
	if !changed {
		return types.NewString(s), nil
	}
	return types.NewString(string(out)), nil
}

func init() {
	both := func(name, doc string, make func(t Template) *Signature) *Function {
		return stringFunction(name, doc, make(tString), make(tBytes))
	}
	extract := both("REGEXP_EXTRACT", "Returns the part that matches, or the pattern's group, for the n-th time behind a position.", func(t Template) *Signature {
		return withOptional(t, evalRegexpExtract, []Template{t, t}, tInt64, tInt64)
	})
	extract.Aliases = []string{"REGEXP_SUBSTR"}
	register(
		both("REGEXP_CONTAINS", "Returns whether part of the value matches a regular expression (RE2).", func(t Template) *Signature {
			return signature(tBool, evalRegexpContains, regexpContainsKernel, t, t)
		}),
		extract,
		both("REGEXP_EXTRACT_ALL", "Returns the parts that match, or what the pattern's group has of them.", func(t Template) *Signature {
			return signature(ArrayT(t), evalRegexpExtractAll, nil, t, t)
		}),
		both("REGEXP_INSTR", "Returns where the n-th match behind a position begins, or ends, or 0.", func(t Template) *Signature {
			return withOptional(tInt64, evalRegexpInstr, []Template{t, t}, tInt64, tInt64, tInt64)
		}),
		both("REGEXP_REPLACE", "Returns the value with each match replaced; \\1 to \\9 stand for groups.", func(t Template) *Signature {
			return signature(t, evalRegexpReplace, nil, t, t, t)
		}),
	)
}
