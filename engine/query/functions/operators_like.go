package functions

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"github.com/trestledb/trestle/engine/query/types"
)

// A likePattern is a compiled pattern of LIKE.
type likePattern struct {
	text string
	form likeForm
	// literal is what a pattern of one of the simple forms looks for.
	literal string
	// parts are what stands between the % of any other pattern; the first begins where the
	// string does, the last ends where it does.
	parts []likePart
	// bytes says that _ is a byte, not a character.
	bytes bool
}

// A likeForm is a kind of pattern that has a fast way.
type likeForm uint8

const (
	likeExact    likeForm = iota // abc
	likePrefix                   // abc%
	likeSuffix                   // %abc
	likeContains                 // %abc%
	likeGeneral
)

// A likePart is text without %. Each zero byte of mask stands for a byte of literal that
// counts, each one for _; mask is nil if there is no _. lead is the text before the
// first _.
type likePart struct {
	literal, lead string
	mask          []byte
}

func compileLike(pattern string, isBytes bool) (*likePattern, error) {
	p := &likePattern{text: strings.Clone(pattern), bytes: isBytes}
	var literal, mask []byte
	wild := false
	flush := func() {
		part := likePart{literal: string(literal)}
		if wild {
			part.mask = append([]byte(nil), mask...)
			part.lead = part.literal[:max(0, bytes.IndexByte(mask, 1))]
		}
		p.parts = append(p.parts, part)
		literal, mask, wild = literal[:0], mask[:0], false
	}
	simple := true
	for i := 0; i < len(pattern); i++ {
		ch, any := pattern[i], byte(0)
		switch ch {
		case '%':
			flush()
			continue
		case '_':
			any, wild, simple = 1, true, false
		case '\\':
			i++
			if i == len(pattern) {
				return nil, Errorf("LIKE pattern ends with a backslash")
			}
			ch = pattern[i]
		}
		literal, mask = append(literal, ch), append(mask, any)
	}
	flush()

	// Several % in a row are one.
	parts := p.parts[:1]
	for i, part := range p.parts[1:] {
		if part.literal != "" || i == len(p.parts)-2 {
			parts = append(parts, part)
		}
	}
	p.parts = parts
	p.form = likeGeneral
	if simple {
		switch n := len(parts); {
		case n == 1:
			p.form, p.literal = likeExact, parts[0].literal
		case n == 2 && parts[1].literal == "":
			p.form, p.literal = likePrefix, parts[0].literal
		case n == 2 && parts[0].literal == "":
			p.form, p.literal = likeSuffix, parts[1].literal
		case n == 3 && parts[0].literal == "" && parts[2].literal == "":
			p.form, p.literal = likeContains, parts[1].literal
		}
	}
	return p, nil
}

// match tells whether s is like the pattern.
func (p *likePattern) match(s string) bool {
	switch p.form {
	case likeExact:
		return s == p.literal
	case likePrefix:
		return strings.HasPrefix(s, p.literal)
	case likeSuffix:
		return strings.HasSuffix(s, p.literal)
	case likeContains:
		return strings.Contains(s, p.literal)
	}
	n, ok := p.matchAt(&p.parts[0], s)
	if !ok {
		return false
	}
	if len(p.parts) == 1 {
		return n == len(s)
	}
	s = s[n:]
	// The first place where a part fits leaves the most for those behind it.
	last := len(p.parts) - 1
	for i := 1; i < last; i++ {
		if s, ok = p.after(&p.parts[i], s); !ok {
			return false
		}
	}
	return p.matchEnd(&p.parts[last], s)
}

// matchAt tells whether part is at the beginning of s, and how long it is there.
func (p *likePattern) matchAt(part *likePart, s string) (int, bool) {
	if part.mask == nil {
		return len(part.literal), strings.HasPrefix(s, part.literal)
	}
	at := 0
	for i, any := range part.mask {
		if at >= len(s) {
			return 0, false
		}
		switch {
		case any == 0:
			if s[at] != part.literal[i] {
				return 0, false
			}
			at++
		case p.bytes || s[at] < utf8.RuneSelf:
			at++
		default:
			_, size := utf8.DecodeRuneInString(s[at:])
			at += size
		}
	}
	return at, true
}

// after returns what follows the first place of s at which part is.
func (p *likePattern) after(part *likePart, s string) (string, bool) {
	if part.mask == nil {
		i := strings.Index(s, part.literal)
		if i < 0 {
			return "", false
		}
		return s[i+len(part.literal):], true
	}
	for at := 0; at < len(s); {
		if part.lead != "" {
			i := strings.Index(s[at:], part.lead)
			if i < 0 {
				return "", false
			}
			at += i
		}
		if n, ok := p.matchAt(part, s[at:]); ok {
			return s[at+n:], true
		}
		if p.bytes || s[at] < utf8.RuneSelf {
			at++
			continue
		}
		_, size := utf8.DecodeRuneInString(s[at:])
		at += size
	}
	return "", false
}

// matchEnd tells whether part is at the end of s.
func (p *likePattern) matchEnd(part *likePart, s string) bool {
	if part.mask == nil {
		return strings.HasSuffix(s, part.literal)
	}
	if p.bytes {
		if len(s) < len(part.mask) {
			return false
		}
		n, ok := p.matchAt(part, s[len(s)-len(part.mask):])
		return ok && n == len(part.mask)
	}
	// The part has a fixed number of characters: those of its literal that count, and
	// one for each _.
	count := 0
	for i, any := range part.mask {
		if any != 0 || utf8.RuneStart(part.literal[i]) {
			count++
		}
	}
	at := len(s)
	for ; count > 0; count-- {
		if at == 0 {
			return false
		}
		_, size := utf8.DecodeLastRuneInString(s[:at])
		at -= size
	}
	n, ok := p.matchAt(part, s[at:])
	return ok && n == len(s)-at
}

// likeState is the pattern that the Call of a LIKE met last.
func likeState(c *Call, pattern string) (*likePattern, error) {
	if p, ok := c.State.(*likePattern); ok && p.text == pattern {
		return p, nil
	}
	p, err := compileLike(pattern, c.Types[0].Kind == types.Bytes)
	if err != nil {
		return nil, err
	}
	c.State = p
	return p, nil
}

func evalLike(c *Call, args []types.Value) (types.Value, error) {
	p, err := likeState(c, args[1].Str)
	if err != nil {
		return types.Null, err
	}
	return types.NewBool(p.match(args[0].Str)), nil
}

func likeKernel(c *Call, args []*types.Vector, out *types.Vector, sel []int32, n int) error {
	state := mergeNulls(out, sel, n, args...)
	if state == allNulls {
		return nil
	}
	a, pattern := args[0], args[1]
	if a.Const || !pattern.Const || state == someNulls {
		return each(sel, n, func(i int) error {
			if out.Null != nil && out.Null[i] {
				return nil
			}
			p, err := likeState(c, pattern.Strs[pattern.At(i)])
			if err == nil {
				out.Ints[i] = boolInt(p.match(a.Strs[a.At(i)]))
			}
			return err
		})
	}
	p, err := likeState(c, pattern.Strs[0])
	if err != nil {
		return err
	}
	if sel != nil {
		for _, i := range sel {
			out.Ints[i] = boolInt(p.match(a.Strs[i]))
		}
		return nil
	}
	strs, ints := a.Strs[:n], out.Ints[:n]
	switch p.form {
	case likeExact:
		compareToConst(equal, strs, p.literal, ints, nil, n)
	case likePrefix:
		for i, s := range strs {
			ints[i] = boolInt(strings.HasPrefix(s, p.literal))
		}
	case likeContains:
		for i, s := range strs {
			ints[i] = boolInt(strings.Contains(s, p.literal))
		}
	default:
		for i, s := range strs {
			ints[i] = boolInt(p.match(s))
		}
	}
	return nil
}

// likeList is the state of a LIKE ANY or LIKE ALL: the patterns that it met last.
type likeList []*likePattern

func (l likeList) at(i int, pattern string, isBytes bool) (*likePattern, error) {
	if p := l[i]; p != nil && p.text == pattern {
		return p, nil
	}
	p, err := compileLike(pattern, isBytes)
	l[i] = p
	return p, err
}

// maxLikePatterns is how many compiled patterns a LIKE ANY keeps.
const maxLikePatterns = 256

// likeQuantified returns the Eval of x [NOT] LIKE ANY|ALL (…). NOT negates each
// comparison with a pattern, not the whole.
func likeQuantified(not, all, array bool) evalFunc {
	decides := logicOf(!all)
	return func(c *Call, args []types.Value) (types.Value, error) {
		x, list := args[0], args[1:]
		if array {
			list = args[1].List
		}
		state, _ := c.State.(likeList)
		if want := min(len(list), maxLikePatterns); len(state) < want {
			state = make(likeList, want)
			c.State = state
		}
		isBytes := c.Types[0].Kind == types.Bytes
		result := decides.not()
		for i, v := range list {
			if !x.Valid || !v.Valid {
				result = logicNull
				continue
			}
			var p *likePattern
			var err error
			if i < len(state) {
				p, err = state.at(i, v.Str, isBytes)
			} else {
				p, err = compileLike(v.Str, isBytes)
			}
			if err != nil {
				return types.Null, err
			}
			if logicOf(p.match(x.Str) != not) == decides {
				return decides.value(), nil
			}
		}
		return result.value(), nil
	}
}

func init() {
	register(operator("$like", "LIKE", "Returns whether the text fits the pattern, in which % stands for any characters, _ for one, and \\ takes the next as it is.",
		signature(tBool, evalLike, likeKernel, tString, tString),
		signature(tBool, evalLike, likeKernel, tBytes, tBytes)))
	for _, x := range []struct {
		name, sql, doc string
		not, all       bool
	}{
		{"$like_any", "LIKE ANY", "Returns whether the text fits one of the patterns.", false, false},
		{"$like_all", "LIKE ALL", "Returns whether the text fits all patterns.", false, true},
		{"$not_like_any", "NOT LIKE ANY", "Returns whether the text does not fit one of the patterns.", true, false},
		{"$not_like_all", "NOT LIKE ALL", "Returns whether the text fits none of the patterns.", true, true},
	} {
		var list, array []*Signature
		for _, t := range []Template{tString, tBytes} {
			list = append(list, &Signature{
				Args: []Arg{{Type: t}, {Type: t, Repeated: true}}, Result: tBool, Nulls: true, Eval: likeQuantified(x.not, x.all, false),
			})
			array = append(array, &Signature{
				Args: positional(t, ArrayT(t)), Result: tBool, Nulls: true, Eval: likeQuantified(x.not, x.all, true),
			})
		}
		register(operator(x.name, x.sql, x.doc, list...), operator(x.name+"_array", x.sql, x.doc, array...))
	}
}
