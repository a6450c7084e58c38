package syntax

// parsePrimary reads an expression without operators.
func (p *parser) parsePrimary() Expr {
	p.enter()
	x := p.primary()
	p.leave()
	return x
}

func (p *parser) primary() Expr {
	t := p.cur()
	switch t.kind {
	case tIdent, tQuoted:
		return p.nameOrCall()
	case tKeyword:
		return p.keywordExpr()
	case tInt, tFloat:
		p.next()
		p.apart(t)
		if t.kind == tInt {
			return &IntLiteral{Pos: t.pos, Text: p.image(t)}
		}
		return &FloatLiteral{Pos: t.pos, Text: p.image(t)}
	case tString:
		return p.stringLiteral()
	case tBytes:
		at := t.pos
		return &BytesLiteral{Pos: at, Value: p.literals(tBytes)}
	case tAt:
		p.next()
		id := p.identifier()
		return &Parameter{Pos: t.pos, Name: id.Name}
	case tPositional:
		p.next()
		return &Parameter{Pos: t.pos}
	case tAtAt:
		p.next()
		return &SystemVariable{Pos: t.pos, Path: p.path()}
	case tLParen:
		return p.parenthesized()
	case tLBracket:
		return &ArrayLiteral{Pos: t.pos, Elems: p.elements()}
	}
	p.unexpected()
	return nil
}

// apart fails if a word stands right behind the number t: 1a is no number and an
// alias. A dot at the end keeps them apart.
func (p *parser) apart(t *token) {
	next := p.cur()
	if next.pos == t.end && (next.kind == tIdent || next.kind == tKeyword) && p.text[t.end-1] != '.' {
		p.syntax("Missing whitespace between literal and alias")
	}
}

func (p *parser) stringLiteral() *StringLiteral {
	at := p.cur().pos
	if !p.is(tString) {
		p.unexpected()
	}
	return &StringLiteral{Pos: at, Value: p.literals(tString)}
}

// literals reads a literal of kind k and those that follow it, which are one value.
func (p *parser) literals(k kind) string {
	value := ""
	for n := 0; ; n++ {
		t := p.cur()
		s, bad := decodeString(p.image(t))
		if bad != nil {
			p.syntaxAt(t.pos+Pos(bad.offset), bad.msg)
		}
		if n == 0 {
			value = s
		} else {
			value += s
			p.link(n)
		}
		p.next()
		next := p.cur()
		if next.kind != tString && next.kind != tBytes {
			return value
		}
		switch {
		case next.kind != k:
			p.syntax("string and bytes literals cannot be concatenated.")
		case next.pos == t.end:
			p.syntax("concatenated string literals must be separated by whitespace or comments")
		}
	}
}

// nameOrCall reads a column, a function call, or a literal of a named type.
func (p *parser) nameOrCall() Expr {
	t := p.cur()
	next := p.at(1)
	switch t.word {
	case wDATE, wDATETIME, wTIME, wTIMESTAMP, wNUMERIC, wDECIMAL, wBIGNUMERIC, wBIGDECIMAL, wJSON:
		if next.kind == tString {
			p.next()
			return &TypedLiteral{Pos: t.pos, Type: wordNames[t.word], Value: p.stringLiteral()}
		}
	case wSAFECAST:
		if next.kind == tLParen {
			return p.parseCast(true)
		}
	}
	// A path with ( behind it is a function's name.
	end, names := p.i+1, 1
	for p.toks[end].kind == tDot && isIdentifier(&p.toks[end+1]) {
		end += 2
		names++
	}
	if p.toks[end].kind == tLParen {
		path := &Path{Pos: t.pos, Names: make([]Identifier, 0, names)}
		for i := p.i; i < end; i += 2 {
			path.Names = append(path.Names, p.identifierOf(&p.toks[i]))
		}
		p.i = end
		return p.call(&Call{Pos: t.pos, Name: path})
	}
	p.next()
	return &Name{p.identifierOf(t)}
}

// keywordExpr reads an expression that begins with a reserved word.
func (p *parser) keywordExpr() Expr {
	t := p.cur()
	switch t.word {
	case wNULL:
		p.next()
		return &Null{t.pos}
	case wTRUE, wFALSE:
		p.next()
		return &BoolLiteral{Pos: t.pos, Value: t.word == wTRUE}
	case wCASE:
		return p.parseCase()
	case wCAST:
		return p.parseCast(false)
	case wEXTRACT:
		return p.parseExtract()
	case wEXISTS:
		p.next()
		p.hint()
		if !p.accept(tLParen) || !p.startsQuery() {
			p.unexpected()
		}
		q := p.parseQuery()
		p.expect(tRParen)
		return &Subquery{Pos: t.pos, Kind: ExistsSubquery, Query: q}
	case wARRAY:
		return p.parseArray()
	case wSTRUCT:
		return p.parseStruct()
	case wNEW:
		return p.parseNew()
	case wINTERVAL:
		return p.parseInterval()
	case wWITH:
		if p.at(1).kind == tLParen {
			return p.parseWithExpr()
		}
	case wIF, wLEFT, wRIGHT, wGROUPING, wCOLLATE, wRANGE:
		if p.at(1).kind == tLParen {
			p.next()
			return p.call(&Call{Pos: t.pos, Name: &Path{Pos: t.pos, Names: []Identifier{{Pos: t.pos, Name: p.image(t)}}}})
		}
		if t.word == wRANGE && p.at(1).kind == tLess {
			p.next()
			p.next()
			p.parseType()
			p.closeAngle()
			return &TypedLiteral{Pos: t.pos, Type: "RANGE", Value: p.stringLiteral()}
		}
		p.next()
		p.expected(kindTexts[tLParen])
	}
	p.unexpected()
	return nil
}

// parenthesized reads (query), (expr) or (expr, expr, …).
func (p *parser) parenthesized() Expr {
	at := p.cur().pos
	p.next()
	if p.queryWordAt(0) {
		q := p.parseQuery()
		p.expect(tRParen)
		return &Subquery{Pos: at, Query: q}
	}
	x := p.parseExpr()
	if sub, ok := x.(*Subquery); ok && sub.Kind == ScalarSubquery && p.continuesQuery() {
		q := p.continueQuery(sub.Query)
		p.expect(tRParen)
		return &Subquery{Pos: at, Query: q}
	}
	if !p.is(tComma) {
		if !p.accept(tRParen) {
			p.expected(kindTexts[tComma])
		}
		if sub, ok := x.(*Subquery); ok && sub.Kind == ScalarSubquery {
			sub.Pos = at // that of all its parentheses
			return sub
		}
		return &Paren{Pos: at, X: x}
	}
	s := &StructLiteral{Pos: at, Tuple: true, Values: []Argument{{Pos: x.At(), X: x}}}
	for p.accept(tComma) {
		x := p.parseExpr()
		s.Values = append(s.Values, Argument{Pos: x.At(), X: x})
	}
	p.expectAfterList(tRParen)
	return s
}

// elements reads [a, b, …].
func (p *parser) elements() []Expr {
	p.expect(tLBracket)
	if p.accept(tRBracket) {
		return nil
	}
	elems := p.exprs()
	p.expectAfterList(tRBracket)
	return elems
}

// parseArray reads ARRAY(query), ARRAY<type>[…] or ARRAY[…].
func (p *parser) parseArray() Expr {
	at := p.cur().pos
	p.next()
	switch {
	case p.accept(tLParen):
		if !p.startsQuery() {
			p.unexpected()
		}
		q := p.parseQuery()
		p.expect(tRParen)
		return &Subquery{Pos: at, Kind: ArraySubquery, Query: q}
	case p.is(tLBracket):
		return &ArrayLiteral{Pos: at, Elems: p.elements()}
	case p.accept(tLess):
		elem := p.parseType()
		p.closeAngle()
		if !p.is(tLBracket) {
			p.expected(kindTexts[tLBracket])
		}
		return &ArrayLiteral{Pos: at, Elem: elem, Elems: p.elements()}
	}
	p.expected(kindTexts[tLess])
	return nil
}

// parseStruct reads STRUCT(…) or STRUCT<…>(…).
func (p *parser) parseStruct() Expr {
	s := &StructLiteral{Pos: p.cur().pos}
	if k := p.at(1).kind; k == tLess || k == tNotEqual {
		s.Type = p.parseType()
	} else {
		p.next()
	}
	if !p.accept(tLParen) {
		if s.Type == nil {
			p.expected(kindTexts[tLess])
		}
		p.expected(kindTexts[tLParen], `"{"`)
	}
	if p.accept(tRParen) {
		return s
	}
	for {
		a := Argument{Pos: p.cur().pos, X: p.parseExpr()}
		if p.word() == wAS {
			a.Alias = p.alias(true)
		}
		s.Values = append(s.Values, a)
		if !p.accept(tComma) {
			break
		}
	}
	p.expectAfterList(tRParen)
	return s
}

// parseNew reads NEW type(expr [AS field], …).
func (p *parser) parseNew() Expr {
	n := &NewMessage{Pos: p.cur().pos}
	p.next()
	n.Type = p.path()
	if p.is(tLBrace) {
		p.fail(p.cur().pos, "Braced constructors are not supported")
	}
	if !p.accept(tLParen) {
		p.expected(kindTexts[tLParen], `"{"`)
	}
	if p.accept(tRParen) {
		return n
	}
	for {
		a := Argument{Pos: p.cur().pos, X: p.parseExpr()}
		if p.word() == wAS {
			if p.at(1).kind == tLParen {
				p.fail(p.at(1).pos, "Extensions are not supported")
			}
			a.Alias = p.alias(true)
		}
		n.Values = append(n.Values, a)
		if !p.accept(tComma) {
			break
		}
	}
	p.expectAfterList(tRParen)
	return n
}

// parseInterval reads INTERVAL value part [TO part].
func (p *parser) parseInterval() Expr {
	v := &IntervalExpr{Pos: p.cur().pos}
	p.next()
	v.Value = p.parseExpr()
	part := p.identifier()
	v.Part = &part
	if p.word() == wTO {
		p.next()
		to := p.identifier()
		v.To = &to
	}
	return v
}

func (p *parser) parseCase() Expr {
	c := &Case{Pos: p.cur().pos}
	p.next()
	if p.word() != wWHEN {
		c.X = p.parseExpr()
	}
	if p.word() != wWHEN {
		p.expected("keyword WHEN")
	}
	for p.acceptWord(wWHEN) {
		w := When{Cond: p.parseExpr()}
		p.expectWord(wTHEN)
		w.Then = p.parseExpr()
		c.Whens = append(c.Whens, w)
	}
	switch p.word() {
	case wELSE:
		p.next()
		c.Else = p.parseExpr()
		p.expectWord(wEND)
	case wEND:
		p.next()
	default:
		p.expected("keyword ELSE", "keyword END", "keyword WHEN")
	}
	return c
}

func (p *parser) parseCast(safe bool) Expr {
	c := &Cast{Pos: p.cur().pos, Safe: safe}
	p.next()
	p.expect(tLParen)
	p.noQuery("CAST")
	c.X = p.parseExpr()
	p.expectWord(wAS)
	c.Type = p.parseType()
	c.FormatPos = p.cur().pos
	if p.acceptWord(wFORMAT) {
		c.Format = p.parseExpr()
		c.Zone = p.atTimeZone()
	}
	if c.Format == nil && !p.is(tRParen) {
		p.expected(kindTexts[tRParen], "keyword FORMAT")
	}
	p.expect(tRParen)
	return c
}

// noQuery fails if a query stands where what takes an expression.
func (p *parser) noQuery(what string) {
	if p.word() == wSELECT {
		p.fail(p.cur().pos, "The argument to "+what+" is an expression, not a query; to use a query as an expression, the query must be wrapped with additional parentheses to make it a scalar subquery expression")
	}
}

// atTimeZone reads AT TIME ZONE expr, if it is there.
func (p *parser) atTimeZone() Expr {
	if !p.acceptWord(wAT) {
		return nil
	}
	p.expectWord(wTIME)
	p.expectWord(wZONE)
	return p.parseExpr()
}

// parseExtract reads EXTRACT(part FROM expr [AT TIME ZONE zone]).
func (p *parser) parseExtract() Expr {
	e := &Extract{Pos: p.cur().pos}
	p.next()
	p.expect(tLParen)
	e.Part = p.identifier()
	if p.accept(tLParen) {
		arg := p.identifier()
		e.Arg = &arg
		p.expect(tRParen)
	}
	p.acceptFrom()
	e.X = p.parseExpr()
	if e.Zone = p.atTimeZone(); e.Zone == nil && !p.is(tRParen) {
		p.expected(kindTexts[tRParen], "keyword AT")
	}
	p.expect(tRParen)
	return e
}

// parseWithExpr reads WITH(name AS expr, …, result).
func (p *parser) parseWithExpr() Expr {
	w := &WithExpr{Pos: p.cur().pos}
	p.next()
	if !isIdentifier(p.at(1)) || p.at(2).word != wAS {
		p.unexpected()
	}
	p.next()
	for isIdentifier(p.cur()) && p.at(1).word == wAS {
		id := p.identifier()
		p.next()
		w.Vars = append(w.Vars, Argument{Pos: id.Pos, X: p.parseExpr(), Alias: &id})
		p.expect(tComma)
	}
	w.Result = p.parseExpr()
	p.expect(tRParen)
	return w
}
