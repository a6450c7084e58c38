package syntax

import (
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/trestledb/trestle/engine/fault"
)

// Limits of a statement. They bound the stack that the parser and all that walks
// its trees need: a tree is never deeper than maxNesting*freeChain+maxChain nodes.
const (
	// MaxText is the longest statement, in bytes.
	MaxText = 1 << 20
	// maxNesting is how deep expressions, queries and types may lie in each other.
	maxNesting = 500
	// freeChain operators in a row (a+b+c…) count as one level of nesting. Operators
	// beyond that are counted over the whole statement, up to maxChain.
	freeChain = 16
	maxChain  = 10000
	// maxTables is how many tables one FROM clause may join.
	maxTables = 500
)

// Parse reads one statement: a query, EXPLAIN, INSERT, UPDATE or DELETE. A semicolon
// may end it. Errors are of kind fault.Invalid, in GoogleSQL's words, and end in
// " [at line:column]".
func Parse(text string) (s Statement, err error) {
	err = run(text, func(p *parser) { s = p.parseStatement() })
	return s, err
}

// ParseQuery reads one query, as of a view. Errors are those of Parse.
func ParseQuery(text string) (q *Query, err error) {
	err = run(text, func(p *parser) {
		if t := p.cur(); t.kind == tEOF || !p.startsQuery() {
			p.unexpected()
		}
		q = p.parseQuery()
		p.endOfInput()
	})
	return q, err
}

// A failure is what the parser panics with to leave its rules; run turns it into an
// error.
type failure struct{ err error }

// A parser reads tokens, by one rule a method. A rule that fails panics with a
// failure, so that rules need not hand errors on.
type parser struct {
	text  string
	toks  []token
	i     int
	level int
	chain int
}

// maxPooled is the number of tokens up to which a list is used again.
const maxPooled = 4096

var parsers = sync.Pool{New: func() any { return &parser{toks: make([]token, 0, 64)} }}

func run(text string, rule func(*parser)) (err error) {
	if len(text) > MaxText {
		return fault.New(fault.Invalid, "The statement has %d bytes; at most %d are allowed", len(text), MaxText)
	}
	if i := strings.IndexByte(text, 0); i >= 0 {
		return errorf(text, Pos(i), `Syntax error: Illegal input character "\000"`)
	}
	if !utf8.ValidString(text) {
		return errorf(text, Pos(firstInvalid(text)), "Syntax error: The statement is not valid UTF-8")
	}
	p := parsers.Get().(*parser)
	p.text, p.i, p.level, p.chain = text, 0, 0, 0
	p.toks = lex(text, p.toks[:0])
	defer func() {
		if cap(p.toks) <= maxPooled {
			p.text = ""
			parsers.Put(p)
		}
		switch r := recover().(type) {
		case nil:
		case failure:
			err = r.err
		default:
			panic(r)
		}
	}()
	rule(p)
	return nil
}

func firstInvalid(s string) int {
	for i := 0; ; {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
}

// Tokens.

func (p *parser) cur() *token { return &p.toks[p.i] }

// at returns the token n places on; behind the last one it is the last one.
func (p *parser) at(n int) *token { return &p.toks[min(p.i+n, len(p.toks)-1)] }

func (p *parser) image(t *token) string { return p.text[t.pos:t.end] }

func (p *parser) is(k kind) bool { return p.toks[p.i].kind == k }

// word is the keyword that the current token is, wNone if it is none.
func (p *parser) word() word { return p.toks[p.i].word }

func (p *parser) next() {
	if p.i < len(p.toks)-1 {
		p.i++
	}
}

// accept takes the current token if it is of kind k.
func (p *parser) accept(k kind) bool {
	if p.toks[p.i].kind == k {
		p.next()
		return true
	}
	return false
}

// acceptWord takes the current token if it is the keyword w.
func (p *parser) acceptWord(w word) bool {
	if p.toks[p.i].word == w {
		p.next()
		return true
	}
	return false
}

var kindTexts = [...]string{
	tEOF: "end of input", tLParen: `"("`, tRParen: `")"`, tLBracket: `"["`, tRBracket: `"]"`,
	tRBrace: `"}"`, tComma: `","`, tDot: `"."`, tEqual: `"="`, tGreater: `">"`, tLess: `"<"`, tNamed: `"=>"`, tArrow: `"->"`,
}

// expect takes a token of kind k, the only one that can stand here.
func (p *parser) expect(k kind) {
	if !p.accept(k) {
		p.expected(kindTexts[k])
	}
}

// expectAfterList is expect for a place where a comma could stand too.
func (p *parser) expectAfterList(k kind) {
	if p.accept(k) {
		return
	}
	all := []string{kindTexts[k], `","`}
	slices.Sort(all)
	p.expected(all...)
}

func (p *parser) expectWord(w word) {
	if !p.acceptWord(w) {
		p.expected("keyword " + wordNames[w])
	}
}

// Errors.

func (p *parser) fail(at Pos, msg string) {
	panic(failure{errorf(p.text, at, "%s", msg)})
}

// syntax fails at the current token.
func (p *parser) syntax(msg string) { p.syntaxAt(p.cur().pos, msg) }

func (p *parser) syntaxAt(at Pos, msg string) {
	p.illegalToken()
	p.fail(at, "Syntax error: "+msg)
}

// illegalToken fails if the current token is one that could not be read, or an EXCEPT
// that is neither an operator nor part of a star.
func (p *parser) illegalToken() {
	switch t := p.cur(); t.kind {
	case tUnclosed:
		p.fail(t.pos, "Syntax error: Unclosed "+unclosed(p.text[t.pos:]))
	case tIllegal:
		p.fail(t.pos, "Syntax error: "+illegal(p.text[t.pos]))
	case tKeyword:
		if t.word != wEXCEPT || p.at(1).kind == tLParen || p.at(1).kind == tHint || p.at(1).word == wALL || p.at(1).word == wDISTINCT {
			return
		}
		p.fail(t.pos, `EXCEPT must be followed by ALL, DISTINCT, or "("`)
	}
}

func (p *parser) unexpected() {
	p.illegalToken()
	if p.word() == wOVER {
		p.syntax("OVER keyword must follow a function call")
	}
	p.syntax("Unexpected " + p.describe(p.cur()))
}

// expected fails: one of what, in order, should stand here.
func (p *parser) expected(what ...string) {
	p.illegalToken()
	t := p.cur()
	switch {
	case t.word == wOVER || what[0] == "end of input" && t.kind == tEOF:
		p.unexpected()
	case t.kind == tPipeArrow && what[0] == "end of input":
		p.syntax("Pipe query syntax is not supported")
	}
	p.syntax("Expected " + strings.Join(what, " or ") + " but got " + p.describe(t))
}

// describe says what t is, as GoogleSQL's messages do.
func (p *parser) describe(t *token) string {
	image := p.image(t)
	switch t.kind {
	case tEOF:
		return "end of statement"
	case tIdent, tKeyword:
		if t.word != wNone {
			return "keyword " + strings.ToUpper(image)
		}
		return `identifier "` + image + `"`
	case tQuoted:
		return "identifier " + image
	case tInt, tFloat:
		if n := p.at(1); n.pos == t.end && (n.kind == tIdent || n.kind == tKeyword) {
			return `"` + image + p.image(n) + `"`
		}
	}
	switch t.kind {
	case tInt:
		return `integer literal "` + image + `"`
	case tFloat:
		return `floating point literal "` + image + `"`
	case tString:
		return "string literal " + shorten(image)
	case tBytes:
		return "bytes literal " + shorten(image)
	case tHint:
		return `"@"`
	}
	return `"` + image + `"`
}

// shorten keeps messages to one line, and literals in them to about fifty characters.
func shorten(s string) string {
	s = strings.NewReplacer("\r", "\\r", "\n", "\\n").Replace(s)
	const most = 50
	if len(s) <= most {
		return s
	}
	start := strings.IndexAny(s, `'"`)
	quote := s[start : start+1]
	if strings.HasPrefix(s[start:], strings.Repeat(quote, 3)) {
		quote = s[start : start+3]
	}
	cut := most - 3 - len(quote)
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..." + quote
}

// enter counts a level of nesting; leave goes with it.
func (p *parser) enter() {
	if p.level++; p.level > maxNesting {
		p.fail(p.cur().pos, "The statement is nested too deeply")
	}
}

func (p *parser) leave() { p.level-- }

// link counts the nth operator of a chain.
func (p *parser) link(n int) {
	if n <= freeChain {
		return
	}
	if p.chain++; p.chain > maxChain {
		p.fail(p.cur().pos, "The statement has too many operators in a row")
	}
}

// Identifiers.

// isIdentifier tells whether t can be a name.
func isIdentifier(t *token) bool { return t.kind == tIdent || t.kind == tQuoted }

func (p *parser) identifier() Identifier {
	t := p.cur()
	if !isIdentifier(t) {
		p.unexpected()
	}
	p.next()
	return p.identifierOf(t)
}

func (p *parser) identifierOf(t *token) Identifier {
	if t.kind != tQuoted {
		return Identifier{Pos: t.pos, Name: p.image(t)}
	}
	if t.end-t.pos == 2 {
		p.fail(t.pos, "Syntax error: Invalid empty identifier")
	}
	name, bad := unescape(p.text[t.pos:t.end-1], 1, false, false)
	if bad != nil {
		p.fail(t.pos+Pos(bad.offset), "Syntax error: "+bad.msg)
	}
	return Identifier{Pos: t.pos, Name: name, Quoted: true}
}

// path reads a.b.c.
func (p *parser) path() *Path {
	n := 1
	for i := p.i + 1; i+1 < len(p.toks) && p.toks[i].kind == tDot && isIdentifier(&p.toks[i+1]); i += 2 {
		n++
	}
	first := p.identifier()
	path := &Path{Pos: first.Pos, Names: make([]Identifier, 1, n)}
	path.Names[0] = first
	for p.is(tDot) && !(p.at(1).kind == tStar) {
		p.next()
		path.Names = append(path.Names, p.identifier())
	}
	return path
}

// alias reads [AS] name. If the word AS is needed, explicit is set.
func (p *parser) alias(explicit bool) *Identifier {
	if p.word() == wAS {
		p.next()
		id := p.identifier()
		return &id
	}
	if t := p.cur(); !explicit && isIdentifier(t) {
		id := p.identifier()
		return &id
	}
	return nil
}

// identifiers reads (a, b, …).
func (p *parser) identifiers() []Identifier {
	p.expect(tLParen)
	ids := []Identifier{p.identifier()}
	for p.accept(tComma) {
		ids = append(ids, p.identifier())
	}
	p.expectAfterList(tRParen)
	return ids
}

// atHint tells whether @{…} or @1 stands here.
func (p *parser) atHint() bool {
	return p.is(tHint) || p.is(tAt) && p.at(1).kind == tInt
}

// hint reads @{…} and @1. Those of a statement are returned; others change nothing.
func (p *parser) hint() (list []Hint) {
	if !p.atHint() {
		return nil
	}
	if p.accept(tAt) {
		p.next()
	}
	if !p.accept(tHint) {
		return nil
	}
	for {
		h := Hint{Name: p.path()}
		if !p.accept(tEqual) {
			p.expected(kindTexts[tDot], kindTexts[tEqual])
		}
		h.Value = p.parseExpr()
		list = append(list, h)
		if !p.accept(tComma) {
			break
		}
	}
	p.expectAfterList(tRBrace)
	return list
}

// Statements.

func (p *parser) parseStatement() Statement {
	s := p.statement()
	p.endOfInput()
	return s
}

func (p *parser) endOfInput() {
	p.accept(tSemicolon)
	if !p.is(tEOF) {
		p.expected(kindTexts[tEOF])
	}
}

func (p *parser) statement() Statement {
	hints := p.hint()
	t := p.cur()
	if p.startsQuery() {
		return &QueryStatement{Pos: t.pos, Query: p.parseQuery(), Hints: hints}
	}
	switch t.word {
	case wEXPLAIN:
		p.enter()
		defer p.leave()
		p.next()
		analyze := p.acceptWord(wANALYZE)
		inner := p.statement()
		if q, ok := inner.(*QueryStatement); ok {
			q.Hints = append(hints, q.Hints...)
		}
		return &Explain{Pos: t.pos, Analyze: analyze, Statement: inner}
	case wINSERT:
		return p.parseInsert()
	case wUPDATE:
		return p.parseUpdate()
	case wDELETE:
		return p.parseDelete()
	}
	if t.kind == tLParen {
		for p.accept(tLParen) {
		}
		p.unexpected()
	}
	if name := p.unsupported(); name != "" {
		p.fail(t.pos, "Statement not supported: "+name)
	}
	p.unexpected()
	return nil
}

// unsupported returns GoogleSQL's name of the statement that begins here, "" if none
// does.
func (p *parser) unsupported() string {
	t := p.cur()
	if t.kind != tIdent && t.kind != tKeyword {
		return ""
	}
	first := strings.ToUpper(p.image(t))
	switch first {
	case "CREATE", "ALTER", "DROP":
		// Words between the verb and what it is about: OR REPLACE, TEMP, PUBLIC, …
		for n := 1; n < 8; n++ {
			what := p.at(n)
			if what.kind == tEOF {
				break
			}
			switch strings.ToUpper(p.image(what)) {
			case "TABLE", "VIEW", "FUNCTION", "INDEX", "DATABASE", "SCHEMA", "PROCEDURE", "MODEL", "CONSTANT", "MODULE":
				name := strings.ToLower(p.image(what))
				return title(first) + title(name) + "Statement"
			}
		}
		return title(first) + "Statement"
	case "MERGE", "TRUNCATE", "GRANT", "REVOKE", "CALL", "DESCRIBE", "SHOW", "BEGIN", "COMMIT", "ROLLBACK",
		"ASSERT", "EXPORT", "IMPORT", "DEFINE", "RENAME", "RUN", "EXECUTE", "ANALYZE", "CLONE", "START", "SET":
		return title(first) + "Statement"
	}
	return ""
}

func title(s string) string { return strings.ToUpper(s[:1]) + strings.ToLower(s[1:]) }
