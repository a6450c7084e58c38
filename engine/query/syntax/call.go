package syntax

// call reads the arguments of c, which stands before the current (, and what
// follows them.
func (p *parser) call(c *Call) Expr {
	p.enter()
	p.expect(tLParen)
	if p.acceptWord(wDISTINCT) {
		c.Distinct = true
	}
	if p.is(tStar) {
		c.Star = true
		p.next()
	} else {
		c.Args = p.arguments(true)
	}
	for p.callModifier(c) {
	}
	p.hint()
	p.expect(tRParen)
	p.hint()
	if p.acceptWord(wOVER) {
		c.Over = p.parseWindow()
	}
	p.leave()
	return c
}

// callModifier reads one clause of an aggregate behind its arguments.
func (p *parser) callModifier(c *Call) bool {
	switch w := p.word(); w {
	case wIGNORE, wRESPECT:
		p.next()
		p.expectWord(wNULLS)
		c.Nulls = wordNames[w]
	case wWHERE:
		p.next()
		c.Where = p.parseExpr()
	case wHAVING:
		at := p.cur().pos
		p.next()
		if c.GroupBy != nil {
			c.GroupHaving = p.parseExpr()
			break
		}
		m := p.word()
		if m != wMAX && m != wMIN {
			p.expected("keyword MAX", "keyword MIN")
		}
		p.next()
		c.Having = &HavingModifier{Pos: at, Max: m == wMAX, X: p.parseExpr()}
	case wGROUP:
		c.GroupBy = p.parseGroupBy()
	case wORDER:
		c.OrderBy = p.orderBy()
	case wLIMIT:
		p.next()
		c.Limit = p.parseExpr()
	default:
		return false
	}
	return true
}

// arguments reads arguments up to a closing parenthesis, which it leaves.
func (p *parser) arguments(aliases bool) []Argument {
	if p.is(tRParen) {
		return nil
	}
	switch p.word() {
	case wWHERE, wHAVING, wGROUP, wORDER, wLIMIT, wIGNORE, wRESPECT:
		return nil
	}
	if !p.startsExpr() && p.word() != wSELECT {
		p.expected(kindTexts[tRParen])
	}
	args := make([]Argument, 0, 2)
	for {
		args = append(args, p.argument(aliases))
		if !p.accept(tComma) {
			return args
		}
	}
}

// argument reads [name =>] expr, where expr may be a lambda; [AS alias] if aliases
// may stand here.
func (p *parser) argument(aliases bool) Argument {
	t := p.cur()
	a := Argument{Pos: t.pos}
	if isIdentifier(t) && p.at(1).kind == tNamed {
		id := p.identifier()
		a.Name = &id
		p.next()
	}
	switch {
	case p.queryWordAt(0):
		p.fail(t.pos, "Each function argument is an expression, not a query; to use a query as an expression, the query must be wrapped with additional parentheses to make it a scalar subquery expression")
	case p.atLambda():
		a.X = p.lambda()
		return a
	default:
		a.X = p.parseExpr()
	}
	if p.is(tArrow) {
		p.syntaxAt(a.X.At(), "Expecting lambda argument list")
	}
	if aliases && p.word() == wAS {
		a.Alias = p.alias(true)
	}
	return a
}

// atLambda tells whether name -> or (a, b) -> stands here.
func (p *parser) atLambda() bool {
	if isIdentifier(p.cur()) {
		return p.at(1).kind == tArrow
	}
	if !p.is(tLParen) {
		return false
	}
	if p.at(1).kind == tRParen {
		return true
	}
	n := 1
	for ; p.at(n).kind != tRParen; n++ {
		if t := p.at(n); !isIdentifier(t) && t.kind != tComma {
			return false
		}
	}
	return p.at(n+1).kind == tArrow
}

func (p *parser) lambda() Expr {
	l := &Lambda{Pos: p.cur().pos}
	if p.accept(tLParen) {
		for !p.is(tRParen) {
			l.Params = append(l.Params, p.identifier())
			if !p.accept(tComma) {
				break
			}
		}
		p.expectAfterList(tRParen)
		if !p.is(tArrow) {
			p.expected("->")
		}
	} else {
		l.Params = []Identifier{p.identifier()}
	}
	p.expect(tArrow)
	l.Body = p.parseExpr()
	return l
}
