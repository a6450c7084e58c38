package functions

import (
	"strings"
	"unicode/utf8"

	"github.com/trestledb/trestle/engine/query/types"
)

// maxOutput is how long a result of REPEAT, LPAD, RPAD, REPLACE and TRANSLATE may be, in
// bytes: 1 MiB, as in GoogleSQL.
const maxOutput = 1 << 20

// stringFunction returns a Function of text and bytes.
func stringFunction(name, doc string, list ...*Signature) *Function {
	return &Function{Name: name, Category: "String", Doc: doc, Signatures: list}
}

// optional returns an Arg that may be left out.
func optional(t Template) Arg { return Arg{Type: t, Optional: true} }

// withOptional returns a Signature whose last arguments may be left out.
func withOptional(result Template, eval evalFunc, required []Template, rest ...Template) *Signature {
	s := signature(result, eval, nil, required...)
	for _, t := range rest {
		s.Args = append(s.Args, optional(t))
	}
	return s
}

// stringResult returns the Eval of a function from one string to another.
func stringResult(f func(c *Call, s string) (string, error)) evalFunc {
	return func(c *Call, args []types.Value) (types.Value, error) {
		s, err := f(c, args[0].Str)
		if err != nil {
			return types.Null, err
		}
		return types.NewString(s), nil
	}
}

// intResult returns the Eval of a function from a string to an integer.
func intResult(f func(s string) int64) evalFunc {
	return func(_ *Call, args []types.Value) (types.Value, error) { return types.NewInt(f(args[0].Str)), nil }
}

func byteLength(s string) int64 { return int64(len(s)) }

func charLength(s string) int64 { return int64(utf8.RuneCountInString(s)) }

// offsetOf returns the byte at which the n'th character of s begins, from 0, or len(s) if
// s is shorter. missing is how many characters it is short of.
func offsetOf(s string, n int64) (offset int, missing int64) {
	if n > int64(len(s)) {
		// It has at most as many characters as bytes. Count them.
		return len(s), n - charLength(s)
	}
	at := 0
	for ; n > 0 && at < len(s); n-- {
		if s[at] < utf8.RuneSelf {
			at++
			continue
		}
		_, size := utf8.DecodeRuneInString(s[at:])
		at += size
	}
	return at, n
}

// offsetFromEnd returns the byte at which the last n characters of s begin, or 0 if s
// is shorter by missing characters.
func offsetFromEnd(s string, n int64) (offset int, missing int64) {
	at := len(s)
	for ; n > 0 && at > 0; n-- {
		if s[at-1] < utf8.RuneSelf {
			at--
			continue
		}
		_, size := utf8.DecodeLastRuneInString(s[:at])
		at -= size
	}
	return at, n
}

// SUBSTR, LEFT and RIGHT.

// substr returns n characters of s, or bytes, from pos: from 1, or from the end if it is
// negative. A position before the beginning is the beginning.
func substr(s string, pos, n int64, bytes bool) string {
	if bytes {
		switch {
		case pos > int64(len(s)):
			return ""
		case pos > 0:
			s = s[pos-1:]
		case pos < 0 && pos >= -int64(len(s)):
			s = s[int64(len(s))+pos:]
		}
		return s[:min(n, int64(len(s)))]
	}
	switch {
	case pos > int64(len(s)):
		return ""
	case pos > 0:
		at, _ := offsetOf(s, pos-1)
		s = s[at:]
	case pos < 0 && pos >= -int64(len(s)):
		at, _ := offsetFromEnd(s, -pos)
		s = s[at:]
	}
	if n >= int64(len(s)) {
		return s
	}
	end, _ := offsetOf(s, n)
	return s[:end]
}

func evalSubstr(c *Call, args []types.Value) (types.Value, error) {
	n := int64(len(args[0].Str))
	if hasArg(c, args, 2) {
		if n = args[2].Int; n < 0 {
			return types.Null, Errorf("Third argument in SUBSTR() cannot be negative")
		}
	}
	return types.NewString(substr(args[0].Str, args[1].Int, n, c.Types[0].Kind == types.Bytes)), nil
}

func evalLeft(c *Call, args []types.Value) (types.Value, error) {
	n := args[1].Int
	if n < 0 {
		return types.Null, Errorf("Second argument in LEFT() cannot be negative")
	}
	return types.NewString(substr(args[0].Str, 1, n, c.Types[0].Kind == types.Bytes)), nil
}

func evalRight(c *Call, args []types.Value) (types.Value, error) {
	s, n := args[0].Str, args[1].Int
	switch {
	case n < 0:
		return types.Null, Errorf("Second argument in RIGHT() cannot be negative")
	case n == 0:
		return types.NewString(""), nil
	case n >= int64(len(s)):
		return types.NewString(s), nil
	}
	return types.NewString(substr(s, -n, n, c.Types[0].Kind == types.Bytes)), nil
}

// STRPOS and INSTR.

func evalStrpos(c *Call, args []types.Value) (types.Value, error) {
	s := args[0].Str
	i := strings.Index(s, args[1].Str)
	if i > 0 && c.Types[0].Kind == types.String {
		i = utf8.RuneCountInString(s[:i])
	}
	return types.NewInt(int64(i + 1)), nil
}

func evalInstr(c *Call, args []types.Value) (types.Value, error) {
	position, occurrence := int64(1), int64(1)
	if hasArg(c, args, 2) {
		position = args[2].Int
	}
	if hasArg(c, args, 3) {
		occurrence = args[3].Int
	}
	switch {
	case occurrence < 1:
		return types.Null, Errorf("Occurrence must be positive")
	case position == 0:
		return types.Null, Errorf("Position must be non-zero")
	}
	s, sub := args[0].Str, args[1].Str
	bytes := c.Types[0].Kind == types.Bytes
	var at int
	if position > 0 {
		at = instr(s, sub, position, occurrence, bytes)
	} else {
		at = instrBackwards(s, sub, position, occurrence, bytes)
	}
	if at > 0 && !bytes {
		at = utf8.RuneCountInString(s[:at])
	}
	return types.NewInt(int64(at + 1)), nil
}

// nextChar returns how long the character at the beginning of s is: 1 for bytes.
func nextChar(s string, bytes bool) int {
	if bytes || s[0] < utf8.RuneSelf {
		return 1
	}
	_, size := utf8.DecodeRuneInString(s)
	return size
}

// instr returns the byte at which sub occurs for the occurrence'th time, overlaps
// included, from the position'th character on; -1 if it does not.
func instr(s, sub string, position, occurrence int64, bytes bool) int {
	at, missing := int(min(position-1, int64(len(s)))), position-1-int64(len(s))
	if !bytes {
		at, missing = offsetOf(s, position-1)
	}
	if missing > 0 {
		return -1
	}
	for {
		i := strings.Index(s[at:], sub)
		if i < 0 {
			return -1
		}
		at += i
		if occurrence--; occurrence == 0 {
			return at
		}
		if at == len(s) {
			return -1
		}
		at += nextChar(s[at:], bytes)
	}
}

// instrBackwards is instr from the position'th character from the end, -1 the last, to
// the beginning. An empty sub may also stand behind the last character, as -1.
func instrBackwards(s, sub string, position, occurrence int64, bytes bool) int {
	back := -(position + 1)
	if sub != "" {
		back++
	}
	if back < 0 || back > int64(len(s)) {
		// Of the smallest integer, or longer than the string.
		return -1
	}
	at, missing := len(s)-int(back), int64(0)
	if !bytes {
		at, missing = offsetFromEnd(s, back)
	}
	if missing > 0 {
		return -1
	}
	// limit is the last place at which sub may begin.
	for limit := at; ; {
		i := strings.LastIndex(s[:min(len(s), limit+len(sub))], sub)
		if i < 0 {
			return -1
		}
		if occurrence--; occurrence == 0 {
			return i
		}
		if i == 0 {
			return -1
		}
		limit = i - 1
		if !bytes {
			limit, _ = offsetFromEnd(s[:i], 1)
		}
	}
}

// STARTS_WITH and ENDS_WITH.

func evalStartsWith(_ *Call, args []types.Value) (types.Value, error) {
	return types.NewBool(strings.HasPrefix(args[0].Str, args[1].Str)), nil
}

func evalEndsWith(_ *Call, args []types.Value) (types.Value, error) {
	return types.NewBool(strings.HasSuffix(args[0].Str, args[1].Str)), nil
}

func startsWithKernel(_ *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	state := mergeNulls(out, sel, n, args...)
	if state == allNulls {
		return nil
	}
	a, prefix := args[0], args[1]
	if state == noNulls && sel == nil && !a.Const && prefix.Const {
		p := prefix.Strs[0]
		ints := out.Ints[:n]
		for i, s := range a.Strs[:n] {
			ints[i] = boolInt(len(s) >= len(p) && s[:len(p)] == p)
		}
		return nil
	}
	return each(sel, n, func(i int) error {
		if out.Null == nil || !out.Null[i] {
			out.Ints[i] = boolInt(strings.HasPrefix(a.Strs[a.At(i)], prefix.Strs[prefix.At(i)]))
		}
		return nil
	})
}

// REPLACE and TRANSLATE.

func evalReplace(c *Call, args []types.Value) (types.Value, error) {
	s, from, to := args[0].Str, args[1].Str, args[2].Str
	n := len(s)
	if from != "" {
		if count := strings.Count(s, from); count > 0 {
			n += count * (len(to) - len(from))
		} else {
			from = ""
		}
	}
	if n > maxOutput {
		return types.Null, Errorf("Output of REPLACE exceeds max allowed output size of 1MB")
	}
	if from == "" {
		return types.NewString(s), nil
	}
	if err := grow(c, n); err != nil {
		return types.Null, err
	}
	return types.NewString(strings.ReplaceAll(s, from, to)), nil
}

// A translation is the table of a TRANSLATE, and the arguments it is made of.
type translation struct {
	from, to string
	runes    map[rune]rune // -1 drops the character
	bytes    [256]int16    // -1 drops the byte
}

func newTranslation(from, to string, bytes bool) (*translation, error) {
	t := &translation{from: strings.Clone(from), to: strings.Clone(to)}
	if bytes {
		for i := range t.bytes {
			t.bytes[i] = int16(i)
		}
		var seen [256]bool
		for i := range len(from) {
			b := from[i]
			if seen[b] {
				return nil, Errorf("Duplicate byte 0x%02x in TRANSLATE source bytes", b)
			}
			seen[b] = true
			t.bytes[b] = -1
			if i < len(to) {
				t.bytes[b] = int16(to[i])
			}
		}
		return t, nil
	}
	t.runes = map[rune]rune{}
	for _, r := range from {
		if _, ok := t.runes[r]; ok {
			return nil, Errorf("Duplicate character %s in TRANSLATE source characters", quoteString(string(r)))
		}
		t.runes[r] = -1
		if to != "" {
			with, size := utf8.DecodeRuneInString(to)
			t.runes[r], to = with, to[size:]
		}
	}
	return t, nil
}

func evalTranslate(c *Call, args []types.Value) (types.Value, error) {
	s, from, to := args[0].Str, args[1].Str, args[2].Str
	bytes := c.Types[0].Kind == types.Bytes
	t, ok := c.State.(*translation)
	if !ok || t.from != from || t.to != to {
		var err error
		if t, err = newTranslation(from, to, bytes); err != nil {
			return types.Null, err
		}
		c.State = t
	}
	if err := grow(c, len(s)); err != nil {
		return types.Null, err
	}
	out := make([]byte, 0, len(s))
	if bytes {
		for i := range len(s) {
			if b := t.bytes[s[i]]; b >= 0 {
				out = append(out, byte(b))
			}
		}
	} else {
		for _, r := range s {
			if with, ok := t.runes[r]; ok {
				r = with
			}
			if r >= 0 {
				out = utf8.AppendRune(out, r)
			}
		}
	}
	if len(out) > maxOutput {
		return types.Null, Errorf("Output of TRANSLATE exceeds max allowed output size of 1MB")
	}
	return types.NewString(string(out)), nil
}

// REPEAT, LPAD, RPAD and REVERSE.

func evalRepeat(c *Call, args []types.Value) (types.Value, error) {
	s, n := args[0].Str, args[1].Int
	if n < 0 {
		return types.Null, Errorf("Second argument (repeat count) for REPEAT cannot be negative")
	}
	if s == "" {
		return types.NewString(""), nil
	}
	if n > maxOutput || len(s) > maxOutput || int64(len(s))*n > maxOutput {
		return types.Null, Errorf("Output of REPEAT exceeds max allowed output size of 1MB")
	}
	if err := grow(c, len(s)*int(n)); err != nil {
		return types.Null, err
	}
	return types.NewString(strings.Repeat(s, int(n))), nil
}

// pad returns the Eval of LPAD or RPAD.
func pad(left bool) evalFunc {
	return func(c *Call, args []types.Value) (types.Value, error) {
		s, size, pattern := args[0].Str, args[1].Int, " "
		if hasArg(c, args, 2) {
			pattern = args[2].Str
		}
		switch {
		case size < 0:
			return types.Null, Errorf("Second argument (output size) for LPAD/RPAD cannot be negative")
		case size > maxOutput:
			return types.Null, errPad()
		case pattern == "":
			return types.Null, Errorf("Third argument (pad pattern) for LPAD/RPAD cannot be empty")
		}
		bytes := c.Types[0].Kind == types.Bytes
		length := charLength
		if bytes {
			length = byteLength
		}
		missing := size - length(s)
		if missing <= 0 {
			return types.NewString(substr(s, 1, size, bytes)), nil
		}
		unit := length(pattern)
		whole, part := int(missing/unit), substr(pattern, 1, missing%unit, bytes)
		n := len(s) + whole*len(pattern) + len(part)
		if n > maxOutput {
			return types.Null, errPad()
		}
		if err := grow(c, n); err != nil {
			return types.Null, err
		}
		out := make([]byte, 0, n)
		if !left {
			out = append(out, s...)
		}
		for range whole {
			out = append(out, pattern...)
		}
		out = append(out, part...)
		if left {
			out = append(out, s...)
		}
		return types.NewString(string(out)), nil
	}
}

func errPad() error { return Errorf("Output of LPAD/RPAD exceeds max allowed output size of 1MB") }

func evalReverse(c *Call, args []types.Value) (types.Value, error) {
	s := args[0].Str
	out, err := growBytes(c, len(s))
	if err != nil {
		return types.Null, err
	}
	if c.Types[0].Kind == types.Bytes {
		for i := range len(s) {
			out[len(s)-1-i] = s[i]
		}
		return types.NewString(string(out)), nil
	}
	at := len(s)
	for i := 0; i < len(s); {
		size := nextChar(s[i:], false)
		at -= size
		copy(out[at:], s[i:i+size])
		i += size
	}
	return types.NewString(string(out)), nil
}

// SPLIT.

func evalSplit(c *Call, args []types.Value) (types.Value, error) {
	s, delimiter := args[0].Str, ","
	bytes := c.Types[0].Kind == types.Bytes
	if hasArg(c, args, 1) {
		delimiter = args[1].Str
	}
	if s == "" {
		return types.NewList([]types.Value{types.NewString("")}), nil
	}
	var n int
	switch {
	case delimiter != "":
		n = strings.Count(s, delimiter) + 1
	case bytes:
		n = len(s)
	default:
		n = utf8.RuneCountInString(s)
	}
	if err := growList(c, n); err != nil {
		return types.Null, err
	}
	list := make([]types.Value, 0, n)
	if delimiter == "" {
		for s != "" {
			size := nextChar(s, bytes)
			list = append(list, types.NewString(s[:size]))
			s = s[size:]
		}
		return types.NewList(list), nil
	}
	for {
		i := strings.Index(s, delimiter)
		if i < 0 {
			return types.NewList(append(list, types.NewString(s))), nil
		}
		list = append(list, types.NewString(s[:i]))
		s = s[i+len(delimiter):]
	}
}

// CONCAT of other types is that of their casts to STRING.
func evalConcatMixed(c *Call, args []types.Value) (types.Value, error) {
	list := make([]types.Value, len(args))
	for i, a := range args {
		var err error
		if list[i], err = castToString(c, c.Types[i], a, nil); err != nil {
			return types.Null, err
		}
	}
	return evalConcat(c, list)
}

// checkConcat refuses what CONCAT and || cannot join: BYTES with others, and types that
// have no cast to STRING without loss.
func checkConcat(args []*types.Type) string {
	for _, t := range args {
		switch t.Kind {
		case types.Bool, types.Int64, types.Float32, types.Float64, types.String, types.Date, types.Timestamp, types.Enum:
		default:
			return "Concatenation is not defined for arguments of type " + t.String()
		}
	}
	return ""
}

// EDIT_DISTANCE.

func evalEditDistance(c *Call, args []types.Value) (types.Value, error) {
	a, b := args[0].Str, args[1].Str
	limit := max(len(a), len(b), 1)
	if hasArg(c, args, 2) {
		if args[2].Int < 0 {
			return types.Null, Errorf("max_distance must be non-negative")
		}
		// What is larger is not told apart.
		limit = int(min(args[2].Int, int64(limit)))
	}
	// The work is quadratic. A thousand characters each take a few milliseconds.
	const most = 1 << 26
	if len(a)*len(b) > most && limit*max(len(a), len(b)) > most {
		return types.Null, Errorf("EDIT_DISTANCE input is too long: %d and %d bytes", len(a), len(b))
	}
	if c.Types[0].Kind == types.Bytes {
		return types.NewInt(int64(editDistance([]byte(a), []byte(b), limit))), nil
	}
	return types.NewInt(int64(editDistance([]rune(a), []rune(b), limit))), nil
}
