package functions

import (
	"math/rand/v2"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/query/types"
)

func TestStrings(t *testing.T) {
	null := tNull(types.StringType)
	checkScalars(t, []scalarCase{
		{"LENGTH", args(tText("€")), "1"},
		{"LENGTH", args(tRaw("€")), "3"},
		{"LENGTH", args(null), "NULL"},
		{"BYTE_LENGTH", args(tText("€")), "3"},
		{"OCTET_LENGTH", args(tRaw("ab")), "2"},
		{"CHARACTER_LENGTH", args(tText("дом")), "3"},
		{"CONCAT", args(tText("a"), tText("b"), tText("c")), "abc"},
		{"CONCAT", args(tRaw("a"), tRaw("b")), `b"ab"`},
		{"CONCAT", args(tText("a"), null), "NULL"},
		{"CONCAT", args(tTruth(false), tInt(-321), tFloat(9.876), tDay("1999-11-22")), "false-3219.8761999-11-22"},
		{"$concat_op", args(tText("a"), tText("b")), "ab"},
		{"$concat_op", args(tInts(1), tInts(2, 3)), "[1, 2, 3]"},
		{"$concat_op", args(tDay("2000-01-01"), tText(" ")), "2000-01-01 "},

		{"SUBSTR", args(tText("abc"), tInt(1)), "abc"},
		{"SUBSTR", args(tText("abc"), tInt(0), tInt(1)), "a"},
		{"SUBSTR", args(tText("abc"), tInt(-3), tInt(5)), "abc"},
		{"SUBSTR", args(tText("abc"), tInt(-5), tInt(2)), "ab"},
		{"SUBSTR", args(tText("abc"), tInt(-2)), "bc"},
		{"SUBSTR", args(tText("abc"), tInt(4)), ""},
		{"SUBSTR", args(tText("дом"), tInt(2), tInt(1)), "о"},
		{"SUBSTR", args(tText("дом"), tInt(-4), tInt(1)), "д"},
		{"SUBSTR", args(tRaw("\xe2\x82\xac"), tInt(2), tInt(1)), `b"\x82"`},
		{"SUBSTR", args(tText("abc"), tInt(1), tInt(-3)), "!Third argument in SUBSTR() cannot be negative"},
		{"SUBSTRING", args(tText("abc"), tInt(-9223372036854775808)), "abc"},
		{"LEFT", args(tText("дом"), tInt(2)), "до"},
		{"LEFT", args(tText("abc"), tInt(-2)), "!Second argument in LEFT() cannot be negative"},
		{"RIGHT", args(tText("дом"), tInt(2)), "ом"},
		{"RIGHT", args(tRaw("abc"), tInt(5)), `b"abc"`},
		{"RIGHT", args(tRaw("abc"), tInt(0)), `b""`},
		{"RIGHT", args(tText("abc"), tInt(-2)), "!Second argument in RIGHT() cannot be negative"},

		{"STRPOS", args(tText("abc"), tText("b")), "2"},
		{"STRPOS", args(tText("дом"), tText("м")), "3"},
		{"STRPOS", args(tText("дом"), tText("x")), "0"},
		{"STRPOS", args(tRaw("\xe2\x82\xac"), tRaw("\x82")), "2"},
		{"INSTR", args(tText("abc"), tText("b")), "2"},
		{"INSTR", args(tText("abbba"), tText("bb"), tInt(2), tInt(2)), "3"},
		{"INSTR", args(tText("abbba"), tText("bb"), tInt(-2)), "3"},
		{"INSTR", args(tText("banana"), tText("an"), tInt(-1), tInt(2)), "2"},
		{"INSTR", args(tText("banana"), tText("an"), tInt(1), tInt(3)), "0"},
		{"INSTR", args(tText("ab"), tText(""), tInt(1), tInt(3)), "3"},
		{"INSTR", args(tText("ab"), tText(""), tInt(1), tInt(4)), "0"},
		{"INSTR", args(tText("a"), tText(""), tInt(-1)), "2"},
		{"INSTR", args(tRaw("helloooo"), tRaw("oo"), tInt(-1), tInt(1)), "7"},
		{"INSTR", args(tText("ab"), tText("a"), tInt(0)), "!Position must be non-zero"},
		{"INSTR", args(tText("ab"), tText("a"), tInt(1), tInt(0)), "!Occurrence must be positive"},
		{"INSTR", args(tText("ab"), tText("a"), tInt(-9223372036854775808)), "0"},

		{"STARTS_WITH", args(tText("abc"), tText("a")), "true"},
		{"STARTS_WITH", args(tRaw(""), tRaw("a")), "false"},
		{"ENDS_WITH", args(tRaw("\xe2\x82\xac"), tRaw("\xac")), "true"},

		{"REPLACE", args(tText("abcabc"), tText("a"), tText("z")), "zbczbc"},
		{"REPLACE", args(tText("abc"), tText(""), tText("z")), "abc"},
		{"REPLACE", args(tText(strings.Repeat("a", 1<<19)), tText("a"), tText("bbb")), "!Output of REPLACE exceeds max allowed output size of 1MB"},
		{"TRANSLATE", args(tText("abc"), tText("abd"), tText("xy")), "xyc"},
		{"TRANSLATE", args(tText("abcabc"), tText("abc"), tText("\tд")), "\tд\tд"},
		{"TRANSLATE", args(tText("abc"), tText("aa"), tText("xy")), `!Duplicate character "a" in TRANSLATE source characters`},
		{"TRANSLATE", args(tRaw("abc"), tRaw("ac"), tRaw("x")), `b"xb"`},
		{"TRANSLATE", args(tRaw("abc"), tRaw("aa"), tRaw("x")), "!Duplicate byte 0x61 in TRANSLATE source bytes"},

		{"REPEAT", args(tText("goog"), tInt(3)), "googgooggoog"},
		{"REPEAT", args(tText("abc"), tInt(-15)), "!Second argument (repeat count) for REPEAT cannot be negative"},
		{"REPEAT", args(tText("abc"), tInt(1000000000)), "!Output of REPEAT exceeds max allowed output size of 1MB"},
		{"REPEAT", args(tText(""), tInt(1<<62)), ""},
		{"LPAD", args(tText("abc"), tInt(10)), "       abc"},
		{"LPAD", args(tText("abc"), tInt(10), tText("-*=")), "-*=-*=-abc"},
		{"LPAD", args(tText("¼¼¼a"), tInt(10), tText("智者")), "智者智者智者¼¼¼a"},
		{"LPAD", args(tText("abc"), tInt(2)), "ab"},
		{"LPAD", args(tText("abc"), tInt(-15)), "!Second argument (output size) for LPAD/RPAD cannot be negative"},
		{"LPAD", args(tText("abc"), tInt(1000000000)), "!Output of LPAD/RPAD exceeds max allowed output size of 1MB"},
		{"LPAD", args(tText("abc"), tInt(1<<20), tText("智")), "!Output of LPAD/RPAD exceeds max allowed output size of 1MB"},
		{"LPAD", args(tText("abc"), tInt(5), tText("")), "!Third argument (pad pattern) for LPAD/RPAD cannot be empty"},
		{"RPAD", args(tRaw("abc"), tInt(10), tRaw("-*=")), `b"abc-*=-*=-"`},
		{"RPAD", args(tText("ab"), tInt(10), null), "NULL"},
		{"REVERSE", args(tText("дом")), "мод"},
		{"REVERSE", args(tRaw("abc")), `b"cba"`},

		{"SPLIT", args(tText("foo, bar, ,,")), "[foo,  bar,  , , ]"},
		{"SPLIT", args(tText("")), "[]"},
		{"SPLIT", args(tText("beyoncé"), tText("")), "[b, e, y, o, n, c, é]"},
		{"SPLIT", args(tText("aaaaa"), tText("aa")), "[, , a]"},
		{"SPLIT", args(tRaw("\x00\x02"), tRaw("")), `[b"\x00", b"\x02"]`},

		{"EDIT_DISTANCE", args(tText("a"), tText("b")), "1"},
		{"EDIT_DISTANCE", args(tText("aa"), tText("b")), "2"},
		{"EDIT_DISTANCE", args(tText("kitten"), tText("sitting")), "3"},
		{"EDIT_DISTANCE", args(tText("abcdefg"), tText("a"), tInt(2)), "2"},
		{"EDIT_DISTANCE", args(tRaw("ё"), tRaw("e")), "2"},
		{"EDIT_DISTANCE", args(tText("a"), tText("b"), tInt(-1)), "!max_distance must be non-negative"},

		{"LOWER", args(tText("ÄB")), "äb"},
		{"LOWER", args(tRaw("\xe2A\x82")), `b"\xe2a\x82"`},
		{"UPPER", args(tText("straße")), "STRASSE"},
		{"UPPER", args(tText("aBcDe")), "ABCDE"},
		{"UPPER", args(tRaw("a\xe9")), `b"A\xe9"`},
		{"INITCAP", args(tText("hello WORLD-everyone")), "Hello World-Everyone"},
		{"INITCAP", args(tText("abcd e"), tText(" c")), "AbcD E"},
		{"TRIM", args(tText(" \u00a0a b \n")), "a b"},
		{"TRIM", args(tText("***apple***"), tText("*")), "apple"},
		{"LTRIM", args(tText("xxxapplexxx"), tText("xyz")), "applexxx"},
		{"RTRIM", args(tRaw(" \xe2\x82\xac "), tRaw(" \xac")), `b" \xe2\x82"`},
		{"TRIM", args(tRaw(" a b "), tRaw("")), `b" a b "`},
		{"NORMALIZE", args(tText("A\u030a")), "\u00c5"},
		{"NORMALIZE", args(tText("ﬀ"), tPart("NFKC")), "ff"},
		{"NORMALIZE_AND_CASEFOLD", args(tText("The red barn ß")), "the red barn ss"},
		{"SOUNDEX", args(tText("Ashcraft")), "A261"},
		{"SOUNDEX", args(tText(" I LOVE YOU TOO")), "I413"},
		{"SOUNDEX", args(tText("")), ""},

		{"ASCII", args(tText("abc")), "97"},
		{"ASCII", args(tText("é")), "!Argument to ASCII is not a structurally valid ASCII string: 'é'"},
		{"ASCII", args(tRaw("\xff")), "255"},
		{"UNICODE", args(tText("\ue000")), "57344"},
		{"UNICODE", args(tText("")), "0"},
		{"CHR", args(tInt(1076)), "д"},
		{"CHR", args(tInt(0xd800)), "!Invalid codepoint 55296"},
		{"CHR", args(tInt(-1)), "!Invalid codepoint -1"},
		{"CODE_POINTS_TO_STRING", args(tInts(65, 255, 513, 1024)), "AÿȁЀ"},
		{"CODE_POINTS_TO_STRING", args(tList(tInt(65), tNull(types.Int64Type))), "NULL"},
		{"CODE_POINTS_TO_STRING", args(tList(tInt(-1), tNull(types.Int64Type))), "NULL"},
		{"CODE_POINTS_TO_BYTES", args(tList(tInt(-1), tNull(types.Int64Type))), "NULL"},
		{"CODE_POINTS_TO_STRING", args(tInts(1 << 40)), "!Invalid codepoint 1099511627776"},
		{"CODE_POINTS_TO_BYTES", args(tInts(65, 98, 255)), `b"Ab\xff"`},
		{"CODE_POINTS_TO_BYTES", args(tInts(256)), "!Invalid ASCII value 256"},
		{"TO_CODE_POINTS", args(tText("foé")), "[102, 111, 233]"},
		{"TO_CODE_POINTS", args(tRaw("\x00\xff")), "[0, 255]"},
		{"TO_HEX", args(tRaw("\x00\xab")), "00ab"},
		{"FROM_HEX", args(tText("00AB")), `b"\x00\xab"`},
		{"FROM_HEX", args(tText("0AF")), `b"\x00\xaf"`},
		{"FROM_HEX", args(tText("0g")), "!Failed to decode invalid hexadecimal string due to character at offset 1: 0g"},
		{"TO_BASE32", args(tRaw("abcde\xff")), "MFRGGZDF74======"},
		{"FROM_BASE32", args(tText("MFRGGZDF74======")), `b"abcde\xff"`},
		{"TO_BASE64", args(tRaw("\xff\xe0")), "/+A="},
		{"FROM_BASE64", args(tText("/+A=")), `b"\xff\xe0"`},
		{"FROM_BASE64", args(tText(" /+\nA")), `b"\xff\xe0"`},
		{"FROM_BASE64", args(tText("/+A==")), "!Failed to decode invalid base64 string"},
		{"SAFE_CONVERT_BYTES_TO_STRING", args(tRaw("\xe2\x28\xa1")), "\ufffd(\ufffd"},
	})
}

func TestHashes(t *testing.T) {
	checkScalars(t, []scalarCase{
		{"MD5", args(tText("Hello World")), `b"\xb1\n\x8d\xb1d\xe0uA\x05\xb7\xa9\x9b\xe7.?\xe5"`},
		{"SHA1", args(tRaw("")), `b"\xda9\xa3\xee^kK\r2U\xbf\xef\x95` + "`" + `\x18\x90\xaf\xd8\a\t"`},
		{"FARM_FINGERPRINT", args(tText("1footrue")), "-1541654101129638711"},
		{"FARM_FINGERPRINT", args(tText("2applefalse")), "2794438866806483259"},
		{"FARM_FINGERPRINT", args(tRaw("3true")), "-4880158226897771312"},
		// Those of Guava's test of the same function.
		{"FARM_FINGERPRINT", args(tText("test")), "8581389452482819506"},
		{"FARM_FINGERPRINT", args(tText(strings.Repeat("test", 8))), "-4196240717365766262"},
		{"FARM_FINGERPRINT", args(tText(strings.Repeat("test", 64))), "3500507768004279527"},
	})
}

func TestRegexp(t *testing.T) {
	null := tNull(types.StringType)
	checkScalars(t, []scalarCase{
		{"REGEXP_CONTAINS", args(tText("foo@example.com"), tText(`@[a-z]+\.com`)), "true"},
		{"REGEXP_CONTAINS", args(tText("дом"), tText("^.{3}$")), "true"},
		{"REGEXP_CONTAINS", args(tRaw("дом"), tRaw("^.{3}$")), "false"},
		{"REGEXP_CONTAINS", args(tRaw("\xff\x00"), tRaw(`^\xff\x00$`)), "true"},
		{"REGEXP_CONTAINS", args(tText("a"), tText("(")), "!Cannot parse regular expression: missing ): ("},
		{"REGEXP_CONTAINS", args(tText("a"), tText("*")), "!Cannot parse regular expression: no argument for repetition operator: *"},
		{"REGEXP_CONTAINS", args(tRaw("a"), tRaw("[z-a]")), "!Cannot parse regular expression: invalid character class range: z-a"},
		{"REGEXP_CONTAINS", args(tText("a"), tText("((a{100}){10}){100}")), "!Cannot parse regular expression: invalid repetition size: {100}"},
		{"REGEXP_CONTAINS", args(tText("a"), tText(strings.Repeat("(a{1000})", 80))), "!Cannot parse regular expression: pattern too large - compile failed"},
		{"REGEXP_EXTRACT", args(tText("foo@example.com"), tText(`^[a-z0-9]+`)), "foo"},
		{"REGEXP_EXTRACT", args(tText("foo@example.com"), tText(`@([a-z]+)`)), "example"},
		{"REGEXP_EXTRACT", args(tText("Hello Helloo and Hellooo"), tText("H?ello+"), tInt(3)), "Helloo"},
		{"REGEXP_EXTRACT", args(tText("Hello Helloo and Hellooo"), tText("H?ello+"), tInt(1), tInt(3)), "Hellooo"},
		{"REGEXP_EXTRACT", args(tText("Hello"), tText("H?ello+"), tInt(7)), "NULL"},
		{"REGEXP_EXTRACT", args(tText("Hello"), tText("x")), "NULL"},
		{"REGEXP_EXTRACT", args(tText("b"), tText("(a)|b")), "NULL"},
		{"REGEXP_EXTRACT", args(tRaw("abcabc"), tRaw("")), `b""`},
		{"REGEXP_EXTRACT", args(tText("abc"), null), "NULL"},
		{"REGEXP_EXTRACT", args(tText("abc"), tText("a"), tInt(0)), "!Position must be positive"},
		{"REGEXP_EXTRACT", args(tText("abc"), tText("(a)(b)")), "!Regular expressions passed into extraction functions must not have more than 1 capturing group"},
		{"REGEXP_SUBSTR", args(tText("Hello World Helloo"), tText("H?ello+"), tInt(1), tInt(2)), "Helloo"},

		{"REGEXP_EXTRACT_ALL", args(tText("abc dbc ac"), tText("[a|d]b?")), "[ab, db, a]"},
		{"REGEXP_EXTRACT_ALL", args(tRaw("abc"), tRaw("")), `[b"", b"", b""]`},
		{"REGEXP_EXTRACT_ALL", args(tRaw("banana"), tRaw("a(n)a")), `[b"n"]`},
		{"REGEXP_EXTRACT_ALL", args(tText("aaa"), tText("^a")), "[a]"},
		{"REGEXP_EXTRACT_ALL", args(tText("ёa ab ba"), tText(`\ba`)), "[a, a]"},
		{"REGEXP_EXTRACT_ALL", args(tText("a\nb\nc"), tText(`(?m)^.`)), "[a, b, c]"},
		{"REGEXP_EXTRACT_ALL", args(tText("baac"), tText("a*")), "[, aa, ]"},
		{"REGEXP_EXTRACT_ALL", args(tText("abc"), tText("$")), "[]"},

		{"REGEXP_INSTR", args(tText("abcabc"), tText("a(b)c"), tInt(2), tInt(1), tInt(1)), "6"},
		{"REGEXP_INSTR", args(tText("щцфщфф"), tText("щ(.)."), tInt(1), tInt(2)), "5"},
		{"REGEXP_INSTR", args(tRaw("щцфщфф"), tRaw("щ(.)."), tInt(1), tInt(2)), "9"},
		{"REGEXP_INSTR", args(tText("-2020-jack-class1"), tText(""), tInt(2)), "0"},
		{"REGEXP_INSTR", args(tText("abcdef"), tText("ac.*e.")), "0"},
		{"REGEXP_INSTR", args(tText("a"), tText("$"), tInt(2)), "0"},
		{"REGEXP_INSTR", args(tText("日"), tText("$"), tInt(3)), "3"},
		{"REGEXP_INSTR", args(tText("日"), tText("$"), tInt(4)), "0"},
		{"REGEXP_INSTR", args(tText("ab@cd-ef"), tText("@[^-]*")), "3"},

		{"REGEXP_REPLACE", args(tText("abcabc"), tText("[a|d]b?"), tText("xyz")), "xyzcxyzc"},
		{"REGEXP_REPLACE", args(tText("# Heading"), tText(`^# ([a-zA-Z0-9\s]+$)`), tText(`<h1>\1</h1>`)), "<h1>Heading</h1>"},
		{"REGEXP_REPLACE", args(tText("aaa"), tText("^a"), tText("b")), "baa"},
		{"REGEXP_REPLACE", args(tText("дом"), tText(""), tText("-")), "-д-о-м-"},
		{"REGEXP_REPLACE", args(tText("baac"), tText("a*"), tText("x")), "xbxcx"},
		{"REGEXP_REPLACE", args(tText("abc"), tText("b"), tText(`\\`)), `a\c`},
		{"REGEXP_REPLACE", args(tText("abc"), tText("b"), tText(`\1`)), "!Invalid REGEXP_REPLACE pattern: Rewrite schema requests 1 matches, but the regexp only has 0 parenthesized subexpressions."},
		{"REGEXP_REPLACE", args(tText("abc"), tText("b"), tText(`\`)), `!Invalid REGEXP_REPLACE pattern: Rewrite schema error: '\' not allowed at end.`},
		{"REGEXP_REPLACE", args(tText("abc"), tText("b"), tText(`\x`)), `!Invalid REGEXP_REPLACE pattern: Rewrite schema error: '\' must be followed by a digit or '\'.`},
	})
}

func TestRegexpEffort(t *testing.T) {
	a := args(tText(strings.Repeat("x", 1<<20)), tText(strings.Repeat("(?:ab|c){1000}", 2)))
	for _, name := range []string{"REGEXP_CONTAINS", "REGEXP_EXTRACT", "REGEXP_EXTRACT_ALL", "REGEXP_INSTR"} {
		if _, err := evalScalar(t, name, a); err == nil || !strings.Contains(err.Error(), "is too complex for an input of 1048576 bytes") {
			t.Errorf("%s: got error %v", name, err)
		}
	}
	if _, err := evalScalar(t, "REGEXP_REPLACE", append(a, tText(""))); err == nil {
		t.Error("REGEXP_REPLACE: no error")
	}
}

// TestMemory has each function that makes large results ask for memory, and pass on that
// there is none.
func TestMemory(t *testing.T) {
	long := tText(strings.Repeat("aé", 20000))
	for _, c := range []scalarCase{
		{name: "CONCAT", args: args(long, long)},
		{name: "UPPER", args: args(long)},
		{name: "REPEAT", args: args(long, tInt(2))},
		{name: "LPAD", args: args(tText("a"), tInt(100000))},
		{name: "REPLACE", args: args(long, tText("a"), tText("b"))},
		{name: "REVERSE", args: args(long)},
		{name: "SPLIT", args: args(long, tText(""))},
		{name: "TO_CODE_POINTS", args: args(long)},
		{name: "NORMALIZE", args: args(long)},
		{name: "REGEXP_EXTRACT_ALL", args: args(long, tText("."))},
		{name: "REGEXP_REPLACE", args: args(tText(strings.Repeat("a", 200000)), tText("."), tText("bc"))},
		{name: "FORMAT", args: args(tText("%s"), long)},
	} {
		s, result, list := chooseSignature(t, c.name, c.args)
		call := newCall(list, result, c.args)
		full := Errorf("full")
		call.Grow = func(int64) error { return full }
		var values []types.Value
		for _, a := range c.args {
			values = append(values, a.v)
		}
		if _, err := s.Eval(call, values); err != full {
			t.Errorf("%s: got error %v", c.name, err)
		}
	}
}

// TestRegexpRandom compares searches with those of package regexp, which knows neither
// required text nor a search from the middle of a text on.
func TestRegexpRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	pieces := []string{"a", "b", "ab", "ё", "(a|b)", "(?:ab)+", "a*", "b?", ".", "[ab]{2}", "(?i)B", "^", "$", `\b`, "|", "(?m)^"}
	text := func(most int, from []string) string {
		var b strings.Builder
		for range 1 + rng.IntN(most) {
			b.WriteString(from[rng.IntN(len(from))])
		}
		return b.String()
	}
	for range 3000 {
		pattern, s := text(4, pieces), text(8, []string{"a", "b", "B", "ё", " ", "\n"})
		std, err := regexp.Compile(pattern)
		if err != nil {
			continue
		}
		r, err := compileRegex(pattern, false)
		if err != nil {
			t.Fatalf("%q: %v", pattern, err)
		}
		if got, want := r.contains(s), std.MatchString(s); got != want {
			t.Fatalf("%q contains %q: got %v", s, pattern, got)
		}
		// Matches that are not empty are those that package regexp finds.
		var got, want [][]int
		if err := r.matches(&Call{}, s, func(m []int, _ int) bool {
			if m[0] < m[1] {
				got = append(got, m[:2])
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
		for _, m := range std.FindAllStringIndex(s, -1) {
			if m[0] < m[1] {
				want = append(want, m)
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%q in %q: got %v, want %v", pattern, s, got, want)
		}
	}
}
