package filter

import (
	"github.com/trestledb/trestle/engine/cputime"

	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rsc.io/binaryregexp"
)

func match(t testing.TB, p, s string) bool {
	t.Helper()
	budget := maxProgram
	c, err := compilePattern([]byte(p), &budget)
	if err != nil {
		t.Fatalf("compile %q: %v", p, err)
	}
	return newMachine(c, dfaMaxMemory, &effort{left: MaxRowEffort}).match([]byte(s))
}

// RE2 in Latin-1 mode: bytes are code points, and a match is of the whole.
func TestRegexMatrix(t *testing.T) {
	for _, test := range []struct {
		pattern string
		yes, no []string
	}{
		{"", []string{""}, []string{"a", "\x00", "\n"}},
		{"a", []string{"a"}, []string{"", "A", "aa", "ba", "a\n"}},
		{".", []string{"a", "\x00", "\xff", "\r"}, []string{"\n", "", "ab"}},
		{".*", []string{"", "abc", "\x00\xff\xfe"}, []string{"\n", "a\nb", "ab\n"}},
		{`\C`, []string{"a", "\n", "\x00", "\xff"}, []string{"", "ab", "é"}},
		{`\C*`, []string{"", "\n", "a\nb", "\xff\xfe\n"}, nil},
		{`\C+`, []string{"\n", "ab"}, []string{""}},
		{"(?s).*", []string{"a\nb", ""}, nil},
		{"(?s:.)", []string{"\n"}, []string{""}},
		{"ab.*", []string{"ab", "abc"}, []string{"a", "ab\n", "xab"}},
		{`ab\C*`, []string{"ab", "abc", "ab\n\xff"}, []string{"a", "xab"}},
		{`.*ab`, []string{"ab", "xab", "abab"}, []string{"aba", "\nab"}},
		{`\C*\nb`, []string{"\nb", "\xff\nb"}, []string{"b"}},

		// The whole, whatever the pattern does to look like it.
		{"a|b", []string{"a", "b"}, []string{"ab", "ax", "xb", ""}},
		{"a|ab", []string{"a", "ab"}, []string{"abb"}},
		{"ab|a", []string{"a", "ab"}, []string{"b"}},
		{"|a", []string{"", "a"}, []string{"aa"}},
		{`a\z|b`, []string{"a", "b"}, []string{"ab", "ax"}},
		{`a\z`, []string{"a"}, []string{"ab", "a\n"}},
		{`a$|\Ab`, []string{"a", "b"}, []string{"ab", "xb"}},
		{"^a$", []string{"a"}, []string{"ab", "a\n"}},
		{"^^a$$", []string{"a"}, []string{"aa"}},
		{"$", []string{""}, []string{"a"}},
		{"^", []string{""}, []string{"a"}},
		{"a^b", nil, []string{"ab", "a", "b"}},
		{"a$b", nil, []string{"ab"}},
		{"(?m)a$\n^b", []string{"a\nb"}, []string{"a\n", "ab"}},
		{"a*?", []string{"", "aaa"}, []string{"b"}},
		{"(?U)a*", []string{"aaa"}, []string{"b"}},
		{"(a|b)*c", []string{"c", "ababc"}, []string{"abab", "cc"}},
		{"(a*)*", []string{"", "aa"}, []string{"b"}},
		{"(|a)+b", []string{"b", "aab"}, []string{"a"}},
		{"(?:x?){3}y", []string{"y", "xxxy"}, []string{"xxxxy"}},
		{"a{2,3}", []string{"aa", "aaa"}, []string{"a", "aaaa"}},
		{"a{2,}", []string{"aa", "aaaaa"}, []string{"a"}},
		{"a{0}", []string{""}, []string{"a"}},
		{"a{,3}", []string{"a{,3}"}, []string{"aa"}},

		// Bytes.
		{"\xff", []string{"\xff"}, []string{"\xc3\xbf", "ÿ"}},
		{"\xff|\x00", []string{"\xff", "\x00"}, []string{"\xff\x00"}},
		{`\xff`, []string{"\xff"}, []string{"ÿ"}},
		{`\xFF\x00`, []string{"\xff\x00"}, nil},
		{`\x{e9}`, []string{"\xe9"}, []string{"é"}},
		{`\377\0`, []string{"\xff\x00"}, nil},
		{"[\x80-\xff]", []string{"\x80", "\xff"}, []string{"\x7f", "a"}},
		{`[^\x00-\x7f]{2}`, []string{"\xc3\xa9", "é"}, []string{"ab"}},
		{`[^\x00-\x{ff}]`, nil, []string{"", "a", "aa"}},
		{`a[^\x00-\xff]*`, []string{"a"}, []string{"", "aa"}},
		{"[^a]", []string{"\n", "\x00", "\xff", "b"}, []string{"a", "é"}},
		{"é", []string{"é"}, []string{"\xe9"}},
		{"[é]", []string{"\xc3", "\xa9"}, []string{"é"}},
		{"é?", []string{"\xc3", "é"}, []string{""}},
		{"\x00", []string{"\x00"}, []string{"", "0"}},
		{`\x00`, []string{"\x00"}, []string{"", `\x00`}},
		{`\pL`, []string{"a", "\xe9"}, []string{"1", "\xd7"}},
		{`\PL`, []string{"1", "\xd7"}, []string{"a", "\xe9"}},
		{`\w\W\d\s`, []string{"a-1 ", "_\xe91\n"}, []string{"\xe9-1 "}},
		{"(?i)\xe9k", []string{"\xe9k", "\xc9K"}, []string{"ek", "\xe9\xe2"}},
		{"(?i)abc", []string{"abc", "ABC"}, []string{"abd"}},
		{"a(?i)b", []string{"ab", "aB"}, []string{"Ab"}},
		{"(?i)[a-c]", []string{"A", "c"}, []string{"D"}},
		{`a\b.*`, []string{"a", "a b", "a-"}, []string{"ab", "a_"}},
		{`a\Bb`, []string{"ab"}, []string{"a"}},
		{`\ba\b`, []string{"a"}, []string{"b"}},

		// How clients quote.
		{`a\.b\-c\ d`, []string{"a.b-c d"}, []string{"axb-c d"}},
		{"\\\xff\\\x80", []string{"\xff\x80"}, []string{"\xff"}},
		{"\\\xc3\\\xa9", []string{"é"}, nil},
		{`\Qa.b\E`, []string{"a.b"}, []string{"axb"}},
		{"\\Qa.\xff\\C\\E.", []string{"a.\xff\\Cx"}, []string{"a.\xffx"}},
		{`\Q\\E`, []string{`\`}, nil},
		{`\Qa.b`, []string{"a.b"}, nil},
		{`row\#1\/\\`, []string{`row#1/\`}, nil},
		{`\_`, []string{"_"}, nil},
		{"\\\n", []string{"\n"}, nil},
		{`a\x2eb`, []string{"a.b"}, []string{"axb"}},
	} {
		for _, s := range test.yes {
			if !match(t, test.pattern, s) {
				t.Errorf("%q does not match %q", test.pattern, s)
			}
		}
		for _, s := range test.no {
			if match(t, test.pattern, s) {
				t.Errorf("%q matches %q", test.pattern, s)
			}
		}
	}
}

func TestRegexQuickPaths(t *testing.T) {
	for p, want := range map[string]struct {
		prefix string
		tail   tail
		plain  bool
	}{
		"abc":                {"abc", tailNone, true},
		`a\-\x00` + "\\\xff": {"a-\x00\xff", tailNone, true},
		`\Qa.b\E`:            {"a.b", tailNone, true},
		"":                   {"", tailNone, false},
		"^abc$":              {"abc", tailNone, false},
		`\C*`:                {"", tailAny, false},
		`ab\C*`:              {"ab", tailAny, false},
		".*":                 {"", tailLine, false},
		"^ab.*$":             {"ab", tailLine, false},
		"(?s)ab.*":           {"ab", tailAny, false},
		"abc?":               {"ab", tailProgram, false},
		"(?i)ab":             {"", tailProgram, false},
		"abc|abd":            {"ab", tailProgram, false},
	} {
		budget := maxProgram
		c, err := compilePattern([]byte(p), &budget)
		if err != nil {
			t.Fatal(err)
		}
		if string(c.prefix) != want.prefix || c.tail != want.tail || c.plain != want.plain {
			t.Errorf("%q: got prefix %q, tail %d, plain %v", p, c.prefix, c.tail, c.plain)
		}
	}
}

func TestLiteralAgreesWithParser(t *testing.T) {
	part := rapid.SampledFrom([]string{"a", "-", "\\", "x00", "x0", "0", "\x00", "\xff", "_", "\n", "Q", "E", " ", "{", ".", "/", "C", "\x7f", "[", "]"})
	rapid.Check(t, func(t *rapid.T) {
		src := []byte(strings.Join(rapid.SliceOfN(part, 0, 8).Draw(t, "src"), ""))
		s, ok := literal(src)
		if !ok {
			return
		}
		budget := maxProgram
		p, err := parsePattern(src, &budget)
		if err != nil || p.tail != tailNone || !bytes.Equal(p.prefix, s) || p.plain != (len(s) > 0) {
			t.Fatalf("%q is literally %q; the parser says %+v, %v", src, s, p, err)
		}
	})
}

func TestRegexErrors(t *testing.T) {
	for p, want := range map[string]string{
		"(":                         "missing closing )",
		")":                         "unexpected )",
		"a)|(b":                     "unexpected )",
		"a)(?:b":                    "unexpected )",
		"[a":                        "missing closing ]",
		"[b-a]":                     "invalid character class range",
		"a**":                       "invalid nested repetition operator",
		"*":                         "missing argument to repetition operator",
		`\8`:                        "invalid escape sequence",
		`[\C]`:                      "invalid escape sequence",
		`\x{100}`:                   "invalid escape sequence",
		`[\x{0}-\x{10FFFF}]`:        "invalid escape sequence",
		`\777`:                      "is no byte",
		`a\777*`:                    "is no byte",
		`(?P<n`:                     "invalid named capture",
		`(?!a)`:                     "invalid or unsupported Perl syntax",
		`a\`:                        "trailing backslash",
		`((a{100}){100}){100}`:      "invalid repeat count",
		`(.{9}){1000}{1000}`:        "invalid",
		strings.Repeat(`\pL`, 101):  "pattern too large",
		strings.Repeat(`a?`, 1<<16): "pattern too large",
	} {
		budget := maxProgram
		_, err := compilePattern([]byte(p), &budget)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: got %v, want %s", p, err, want)
		}
	}
}

// The dfa must start over, and give up where that does not pay, without a
// change of what matches.
func TestDFAMemory(t *testing.T) {
	for _, test := range []struct {
		pattern, data string
		over, given   bool // does it start over; give up
	}{
		{".*x.{5}", "aabbx", false, false},                         // 64 states
		{".*x.{14}", "aabbx", false, true},                         // 2^15 states
		{".*x.{14}", strings.Repeat("a", 100) + "xx", true, false}, // as many, but few are used at a time
		{"(a|x)*x(a|b)*", strings.Repeat("a", 100) + "x", false, false},
	} {
		budget := maxProgram
		c, err := compilePattern([]byte(test.pattern), &budget)
		if err != nil {
			t.Fatal(err)
		}
		const limit = 16 << 10
		m, plain := newMachine(c, limit, &effort{left: MaxRowEffort}), newMachine(c, 0, &effort{left: MaxRowEffort})
		rnd := rand.New(rand.NewPCG(1, 2))
		matches := 0
		for range 300 {
			s := make([]byte, 1+rnd.IntN(200))
			for i := range s {
				s[i] = test.data[rnd.IntN(len(test.data))]
			}
			got, want := m.match(s), plain.match(s)
			if got != want {
				t.Fatalf("%s on %s: got %v", test.pattern, s, got)
			}
			if got {
				matches++
			}
			if used := m.dfa.used(); used > limit {
				t.Fatalf("%s: uses %d bytes", test.pattern, used)
			}
		}
		if m.dfa.given != test.given || !test.given && m.dfa.starts > 1 != test.over || matches == 0 {
			t.Errorf("%s on %.10s…: %d states, started over %d times, given up %v, %d matches",
				test.pattern, test.data, len(m.dfa.states), m.dfa.starts, m.dfa.given, matches)
		}
	}
}

// Every filter pattern of the size that a request may have compiles and runs in
// bounded time and memory, or is refused.
func TestRegexCost(t *testing.T) {
	const size = 20 << 10
	for _, part := range []string{"a", "a|", "ab|", "a?b|", "a?", ".*", "(a)|", "(", "(?:a*)*", "(x{1000})", "(|a){1000}", "[^a]|",
		`\pL`, `[[:^word:]]|`, `(?i)k`, "x{0}", `\b`, "$|", "^|", "(a|b", "(a+)+", "((a{10}){10}){10}", "[a-z&&", `\Q(`, "(((a?){2}){2}){2}"} {
		p := strings.Repeat(part, size/len(part))
		if open := strings.Count(p, "(") - strings.Count(p, ")"); open > 0 && !strings.Contains(p, `\Q`) {
			p = strings.Repeat(part, size/(len(part)+1)) + strings.Repeat(")", size/(len(part)+1))
		}
		start := cputime.Used()
		budget := maxProgram
		c, err := compilePattern([]byte(p), &budget)
		compiled := cputime.Used() - start
		if err == nil {
			m := newMachine(c, dfaMaxMemory, &effort{left: MaxRowEffort})
			for _, s := range []string{strings.Repeat("a", 300), strings.Repeat("ab", 100) + "\xff"} {
				m.match([]byte(s))
			}
		}
		if d := cputime.Used() - start; d > 5*time.Second {
			t.Errorf("%q repeated took %v of processor, of it %v to compile", part, d, compiled)
		} else if d > 100*time.Millisecond {
			t.Logf("%q repeated took %v of processor, of it %v to compile", part, d, compiled)
		}
	}
}

// checkRegex compares with binaryregexp, which knows captures, priorities and
// unanchored search, none of which is used here.
func checkRegex(t interface{ Fatalf(string, ...any) }, p []byte, data ...[]byte) {
	budget := maxProgram
	c, err := compilePattern(p, &budget)
	if err != nil {
		return
	}
	if bytes.Contains(p, []byte(`\Q`)) || bytes.ContainsFunc(p, func(r rune) bool { return r > 127 }) {
		for _, s := range data {
			newMachine(c, dfaMaxMemory, &effort{left: MaxRowEffort}).match(s)
		}
		return // binaryregexp cannot be told
	}
	re, err := binaryregexp.Compile(`\A(?:` + string(p) + `)\z`)
	if err != nil {
		t.Fatalf("%q: only binaryregexp fails: %v", p, err)
	}
	// With room, with so little that the dfa starts over, and without.
	for _, memory := range []int{dfaMaxMemory, 2000, 600, 0} {
		m := newMachine(c, memory, &effort{left: MaxRowEffort})
		for range 2 {
			for _, s := range data {
				if got, want := m.match(s), re.Match(s); got != want {
					t.Fatalf("%q on %q with %d bytes: got %v, want %v", p, s, memory, got, want)
				}
			}
		}
	}
}

func TestRegexAgreesWithBinaryregexp(t *testing.T) {
	part := rapid.SampledFrom([]string{"a", "b", "ab", ".", `\C`, "|", "(", ")", "(?:", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?",
		"^", "$", `\b`, `\B`, "[ab]", "[^a]", `\n`, "(?i:", "(?m:", "(?s:", `\z`, `\A`, "[[:space:]]", `\w`, `\x00`, "A"})
	data := rapid.SampledFrom([]string{"a", "b", "ab", "A", "\n", "\x00", "\xff", " "})
	rapid.Check(t, func(t *rapid.T) {
		p := strings.Join(rapid.SliceOfN(part, 0, 10).Draw(t, "pattern"), "")
		for range strings.Count(p, "(") - strings.Count(p, ")") {
			p += ")"
		}
		var all [][]byte
		for range 8 {
			all = append(all, []byte(strings.Join(rapid.SliceOfN(data, 0, 8).Draw(t, "data"), "")))
		}
		checkRegex(t, []byte(p), all...)
	})
}

func FuzzRegex(f *testing.F) {
	for _, p := range []string{"", "a|b", `\C*`, ".*", `a\z|b`, `\x{ff}`, "[^a]{3}", `\Qa\E`, `(?i)\pL`, "(a*)*b", `\ba\b`, "(?m)^a$"} {
		f.Add([]byte(p), []byte("ab\n\xff"))
	}
	f.Fuzz(func(t *testing.T, p, s []byte) {
		if len(p) > 200 || len(s) > 200 {
			return
		}
		checkRegex(t, p, s, s[:len(s)/2], s[len(s)/2:], bytes.ToUpper(s))
	})
}
