package filter

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"rsc.io/binaryregexp/syntax"
)

const (
	// maxProgram limits the instructions of all patterns of one filter
	// together. A pattern of n bytes without counted repetition needs at most
	// about 2n, so no filter within the size limit is refused for anything but
	// its repetitions.
	maxProgram = 1 << 16
	// maxNesting limits the groups inside groups of a pattern, as RE2 does.
	maxNesting = 1000
	// maxClasses limits the Unicode classes (\pL) of one pattern: the parser
	// makes hundreds of ranges of each.
	maxClasses = 100
)

var errProgram = errors.New("pattern too large - compile failed")

// A pattern is a compiled regular expression: the literal bytes that it starts
// with, then a tail. It is immutable; a machine runs its program.
type pattern struct {
	prefix []byte
	tail   tail
	prog   *program // of the tail, if tail is tailProgram
	// plain tells that the source was nothing but a literal, and not empty.
	plain bool
}

type tail uint8

const (
	tailNone    tail = iota // nothing: the pattern is its prefix
	tailAny                 // \C*
	tailLine                // .*
	tailProgram             // anything else
)

// compilePattern compiles src, taking what its program needs from budget, a
// number of instructions.
func compilePattern(src []byte, budget *int) (*pattern, error) {
	if s, ok := literal(src); ok {
		return &pattern{prefix: s, plain: len(s) > 0}, nil
	}
	return parsePattern(src, budget)
}

// literal returns the bytes that src stands for, if it is of the kind that
// clients write for one key: bytes, quoted or not. It says what the parser
// would say, sooner.
func literal(src []byte) (s []byte, ok bool) {
	s = make([]byte, 0, len(src))
	for i := 0; i < len(src); i++ {
		c := src[i]
		if strings.IndexByte(`.+*?()|[]{}^$`, c) >= 0 {
			return nil, false
		}
		if c == '\\' {
			if i++; i == len(src) {
				return nil, false
			}
			switch c = src[i]; {
			case bytes.HasPrefix(src[i:], []byte("x00")):
				c = 0
				i += 2
			case 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9':
				return nil, false
			}
		}
		s = append(s, c)
	}
	return s, true
}

func parsePattern(src []byte, budget *int) (*pattern, error) {
	text, err := decode(src)
	if err != nil {
		return nil, err
	}
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	p := &pattern{plain: re.Op == syntax.OpLiteral && re.Flags&syntax.FoldCase == 0}

	parts := []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		parts = re.Sub
	}
	// The whole of the data has to match, which makes outer anchors idle.
	for len(parts) > 0 && (parts[0].Op == syntax.OpBeginText || parts[0].Op == syntax.OpEmptyMatch) {
		parts = parts[1:]
	}
	for n := len(parts); n > 0 && (parts[n-1].Op == syntax.OpEndText || parts[n-1].Op == syntax.OpEmptyMatch); n-- {
		parts = parts[:n-1]
	}
	for len(parts) > 0 && parts[0].Op == syntax.OpLiteral && parts[0].Flags&syntax.FoldCase == 0 {
		for _, r := range parts[0].Rune {
			if r > 0xFF {
				return nil, fmt.Errorf("invalid escape sequence: `\\x{%x}` is no byte", r)
			}
			p.prefix = append(p.prefix, byte(r))
		}
		parts = parts[1:]
	}

	switch {
	case len(parts) == 0:
		return p, nil
	case len(parts) == 1 && parts[0].Op == syntax.OpStar && parts[0].Sub[0].Op == syntax.OpAnyChar:
		p.tail = tailAny
		return p, nil
	case len(parts) == 1 && parts[0].Op == syntax.OpStar && parts[0].Sub[0].Op == syntax.OpAnyCharNotNL:
		p.tail = tailLine
		return p, nil
	}
	p.tail = tailProgram
	p.prog, err = compileProgram(parts, budget)
	return p, err
}

// decode makes the code points that are the bytes of a pattern into text for
// the parser. It refuses what is no byte, and accepts a backslash before any
// byte above 127, as some clients write.
func decode(src []byte) (string, error) {
	var b strings.Builder
	b.Grow(len(src) + len(src)/8)
	classes := 0
	for i := 0; i < len(src); i++ {
		c := src[i]
		if c != '\\' || i+1 == len(src) {
			b.WriteRune(rune(c))
			continue
		}
		i++
		c = src[i]
		if c < 0x80 {
			b.WriteByte('\\')
		}
		b.WriteRune(rune(c))
		switch c {
		case 'Q':
			// Everything up to \E stands for itself, backslashes too. The parser
			// refuses \Q inside a class, so there is no other reading of it.
			end := bytes.Index(src[i+1:], []byte(`\E`))
			if end < 0 {
				end = len(src) - i - 1
			}
			for _, c := range src[i+1 : i+1+end] {
				b.WriteRune(rune(c))
			}
			i += end
		case 'p', 'P':
			if classes++; classes > maxClasses {
				return "", errProgram
			}
		case 'x':
			if !isByteEscape(src[i+1:]) {
				return "", fmt.Errorf("invalid escape sequence: a code point above 255 is no byte")
			}
		}
	}
	return b.String(), nil
}

// isByteEscape tells whether s, which follows \x, is not a code point in braces
// above 255. Malformed ones are left to the parser.
func isByteEscape(s []byte) bool {
	if len(s) == 0 || s[0] != '{' {
		return true
	}
	v := 0
	for _, c := range s[1:] {
		switch {
		case '0' <= c && c <= '9':
			v = v<<4 | int(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			v = v<<4 | int(c|0x20-'a'+10)
		default:
			return true
		}
		if v > 0xFF {
			return false
		}
	}
	return true
}

// A program is a nondeterministic automaton over bytes.
type program struct {
	inst    []inst
	sets    []byteSet
	start   uint32
	asserts bool // has opAssert
	// class sorts the bytes into that many classes; without asserts only.
	class   [256]uint8
	classes int
}

// takes tells whether in goes on with c.
func (p *program) takes(in *inst, c byte) bool {
	return in.op == opByte && in.b == c || in.op == opSet && p.sets[in.arg].has(c)
}

type inst struct {
	op  instOp
	b   byte   // opByte; the syntax.EmptyOp of opAssert
	out uint32 // next instruction
	arg uint32 // opSplit: the other next one; opSet: index of the set
}

type instOp uint8

const (
	opMatch instOp = iota
	opFail
	opByte
	opSet
	opSplit
	opAssert
)

type byteSet [4]uint64

func (s *byteSet) add(b byte)      { s[b>>6] |= 1 << (b & 63) }
func (s *byteSet) has(b byte) bool { return s[b>>6]&(1<<(b&63)) != 0 }

// compileProgram compiles the concatenation of parts.
func compileProgram(parts []*syntax.Regexp, budget *int) (*program, error) {
	c := compiler{p: new(program), budget: budget, seen: make(map[byteSet]uint32)}
	next := c.add(inst{op: opMatch})
	for i := len(parts) - 1; i >= 0; i-- {
		next = c.emit(parts[i], next, 0)
	}
	if c.err != nil {
		return nil, c.err
	}
	c.p.start = next
	if !c.p.asserts {
		c.p.classify()
	}
	return c.p, nil
}

// A compiler emits code back to front: each part is told where to go on, so
// nothing has to be patched but loops.
type compiler struct {
	p      *program
	budget *int
	seen   map[byteSet]uint32
	err    error
}

func (c *compiler) add(in inst) uint32 {
	if *c.budget <= 0 {
		c.err = errProgram
	}
	if c.err != nil {
		return 0
	}
	*c.budget--
	c.p.inst = append(c.p.inst, in)
	return uint32(len(c.p.inst) - 1)
}

func (c *compiler) addSet(s byteSet, next uint32) uint32 {
	i, ok := c.seen[s]
	if !ok {
		i = uint32(len(c.p.sets))
		c.p.sets = append(c.p.sets, s)
		c.seen[s] = i
	}
	return c.add(inst{op: opSet, arg: i, out: next})
}

func (c *compiler) emit(re *syntax.Regexp, next uint32, depth int) uint32 {
	if depth > maxNesting {
		c.err = errors.New("expression nests too deeply")
	}
	if c.err != nil {
		return 0
	}
	switch re.Op {
	case syntax.OpNoMatch:
		return c.add(inst{op: opFail})
	case syntax.OpEmptyMatch:
		return next
	case syntax.OpLiteral:
		for i := len(re.Rune) - 1; i >= 0; i-- {
			next = c.literal(re.Rune[i], re.Flags&syntax.FoldCase != 0, next)
		}
		return next
	case syntax.OpCharClass:
		var s byteSet
		for i := 0; i+1 < len(re.Rune); i += 2 {
			for r := re.Rune[i]; r <= re.Rune[i+1] && r <= 0xFF; r++ {
				s.add(byte(r))
			}
		}
		return c.addSet(s, next)
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		s := byteSet{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}
		if re.Op == syntax.OpAnyCharNotNL {
			s[0] &^= 1 << '\n'
		}
		return c.addSet(s, next)
	case syntax.OpBeginLine:
		return c.assert(syntax.EmptyBeginLine, next)
	case syntax.OpEndLine:
		return c.assert(syntax.EmptyEndLine, next)
	case syntax.OpBeginText:
		return c.assert(syntax.EmptyBeginText, next)
	case syntax.OpEndText:
		return c.assert(syntax.EmptyEndText, next)
	case syntax.OpWordBoundary:
		return c.assert(syntax.EmptyWordBoundary, next)
	case syntax.OpNoWordBoundary:
		return c.assert(syntax.EmptyNoWordBoundary, next)
	case syntax.OpCapture:
		return c.emit(re.Sub[0], next, depth+1)
	case syntax.OpStar:
		return c.repeat(re.Sub[0], 0, -1, next, depth+1)
	case syntax.OpPlus:
		return c.repeat(re.Sub[0], 1, -1, next, depth+1)
	case syntax.OpQuest:
		return c.repeat(re.Sub[0], 0, 1, next, depth+1)
	case syntax.OpRepeat:
		return c.repeat(re.Sub[0], re.Min, re.Max, next, depth+1)
	case syntax.OpConcat:
		for i := len(re.Sub) - 1; i >= 0; i-- {
			next = c.emit(re.Sub[i], next, depth+1)
		}
		return next
	case syntax.OpAlternate:
		at := c.emit(re.Sub[len(re.Sub)-1], next, depth+1)
		for i := len(re.Sub) - 2; i >= 0; i-- {
			at = c.add(inst{op: opSplit, out: c.emit(re.Sub[i], next, depth+1), arg: at})
		}
		return at
	}
	c.err = fmt.Errorf("unsupported syntax: %v", re.Op)
	return 0
}

func (c *compiler) literal(r rune, fold bool, next uint32) uint32 {
	if r > 0xFF {
		c.err = fmt.Errorf("invalid escape sequence: `\\x{%x}` is no byte", r)
		return 0
	}
	if !fold {
		return c.add(inst{op: opByte, b: byte(r), out: next})
	}
	var s byteSet
	s.add(byte(r))
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		if f <= 0xFF {
			s.add(byte(f))
		}
	}
	return c.addSet(s, next)
}

func (c *compiler) assert(op syntax.EmptyOp, next uint32) uint32 {
	c.p.asserts = true
	return c.add(inst{op: opAssert, b: byte(op), out: next})
}

// repeat emits re at least min and at most max times (-1: no limit).
func (c *compiler) repeat(re *syntax.Regexp, min, max int, next uint32, depth int) uint32 {
	at := next
	if max < 0 {
		loop := c.add(inst{op: opSplit, arg: next})
		body := c.emit(re, loop, depth)
		if c.err != nil {
			return 0
		}
		c.p.inst[loop].out = body
		at = loop
		if min > 0 {
			at = body
			min--
		}
	} else {
		for i := min; i < max && c.err == nil; i++ {
			at = c.add(inst{op: opSplit, out: c.emit(re, at, depth), arg: next})
		}
	}
	for i := 0; i < min && c.err == nil; i++ {
		at = c.emit(re, at, depth)
	}
	return at
}

// A machine matches data against one pattern. It serves one goroutine.
type machine struct {
	p         *pattern
	cur, next threads
	stack     []uint32
	// mark[pc] == gen when pc is in the set being built.
	mark []uint32
	gen  uint32
	dfa  dfa
	// effort is shared by the machines of a pipeline.
	effort *effort
}

// MaxRowEffort is the most steps that the patterns of a Pipeline may take over
// one row, besides freeSteps per byte: a few seconds' worth. Only hostile
// patterns on large values come near. Most others run as a dfa, which takes
// next to none.
const MaxRowEffort = 1 << 28

const freeSteps = 16

// An effort is what is left to the patterns of a pipeline for the row, in
// instructions.
type effort struct{ limit, left int }

func (e *effort) spent() bool { return e.left < 0 }

// threads are the instructions that wait for the next byte.
type threads struct {
	pcs   []uint32
	match bool
}

// newMachine returns a machine that remembers states within memory, in bytes.
func newMachine(p *pattern, memory int, e *effort) *machine {
	m := &machine{p: p, effort: e}
	if p.tail == tailProgram {
		m.mark = make([]uint32, len(p.prog.inst))
		m.dfa = dfa{m: m, limit: memory, given: p.prog.asserts}
	}
	return m
}

// match tells whether the whole of b matches.
func (m *machine) match(b []byte) bool {
	p := m.p
	if p.tail == tailNone {
		return bytes.Equal(b, p.prefix)
	}
	if !bytes.HasPrefix(b, p.prefix) {
		return false
	}
	switch p.tail {
	case tailAny:
		return true
	case tailLine:
		return bytes.IndexByte(b[len(p.prefix):], '\n') < 0
	}
	if match, ok := m.dfa.run(b[len(p.prefix):]); ok {
		return match
	}
	return m.run(b, len(p.prefix))
}

// run simulates the program on b[pos:]. What is before pos matters to
// assertions only.
func (m *machine) run(b []byte, pos int) bool {
	prog := m.p.prog
	if m.effort.spent() {
		return false // once spent it stays so
	}
	m.effort.left += freeSteps * (len(b) - pos)
	m.begin(&m.cur)
	m.follow(&m.cur, prog.start, m.context(b, pos))
	for ; pos < len(b); pos++ {
		if len(m.cur.pcs) == 0 || m.effort.spent() {
			return false // the pipeline fails if it was the effort
		}
		m.begin(&m.next)
		ctx := m.context(b, pos+1)
		for _, pc := range m.cur.pcs {
			if in := &prog.inst[pc]; prog.takes(in, b[pos]) {
				m.follow(&m.next, in.out, ctx)
			}
		}
		m.cur, m.next = m.next, m.cur
	}
	return m.cur.match
}

// context returns the assertions that hold before b[pos].
func (m *machine) context(b []byte, pos int) syntax.EmptyOp {
	if !m.p.prog.asserts {
		return 0
	}
	before, after := rune(-1), rune(-1)
	if pos > 0 {
		before = rune(b[pos-1])
	}
	if pos < len(b) {
		after = rune(b[pos])
	}
	return syntax.EmptyOpContext(before, after)
}

func (m *machine) begin(t *threads) {
	t.pcs, t.match = t.pcs[:0], false
	if m.gen++; m.gen == 0 {
		clear(m.mark)
		m.gen = 1
	}
}

// follow adds to t what is reached from pc without a byte.
func (m *machine) follow(t *threads, pc uint32, ctx syntax.EmptyOp) {
	prog := m.p.prog
	m.stack = append(m.stack[:0], pc)
	for len(m.stack) > 0 {
		m.effort.left--
		pc := m.stack[len(m.stack)-1]
		m.stack = m.stack[:len(m.stack)-1]
		if m.mark[pc] == m.gen {
			continue
		}
		m.mark[pc] = m.gen
		switch in := &prog.inst[pc]; in.op {
		case opByte, opSet:
			t.pcs = append(t.pcs, pc)
		case opMatch:
			t.match = true
		case opSplit:
			m.stack = append(m.stack, in.arg, in.out)
		case opAssert:
			if syntax.EmptyOp(in.b)&^ctx == 0 {
				m.stack = append(m.stack, in.out)
			}
		}
	}
}
