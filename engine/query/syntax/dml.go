package syntax

// parseInsert reads INSERT [OR action] [INTO] table (columns) VALUES … | query.
func (p *parser) parseInsert() Statement {
	s := &Insert{Pos: p.cur().pos}
	p.next()
	or := p.acceptWord(wOR)
	switch w := p.word(); {
	case w == wIGNORE, (w == wREPLACE || w == wUPDATE) && (or || p.at(1).word == wINTO || isIdentifier(p.at(1))):
		s.Mode = wordNames[w]
		p.next()
	case or:
		p.expected("keyword IGNORE", "keyword REPLACE", "keyword UPDATE")
	}
	p.acceptWord(wINTO)
	s.Table = p.tablePath()
	if p.is(tLParen) && !p.startsQuery() {
		p.next()
		for {
			s.Columns = append(s.Columns, p.target())
			if !p.accept(tComma) {
				break
			}
		}
		p.expectAfterList(tRParen)
	}
	if p.acceptWord(wVALUES) {
		for {
			s.Rows = append(s.Rows, p.insertRow())
			if !p.accept(tComma) {
				return s
			}
		}
	}
	if !p.startsQuery() {
		p.unexpected()
	}
	s.Query = p.parseQuery()
	return s
}

func (p *parser) insertRow() []Expr {
	p.expect(tLParen)
	row := []Expr{p.valueOrDefault()}
	for p.accept(tComma) {
		row = append(row, p.valueOrDefault())
	}
	p.expectAfterList(tRParen)
	return row
}

func (p *parser) valueOrDefault() Expr {
	if p.word() == wDEFAULT {
		at := p.cur().pos
		p.next()
		return &DefaultValue{at}
	}
	return p.parseExpr()
}

// target reads a column that is written: a name, or a family with a subscript.
func (p *parser) target() Expr {
	if !isIdentifier(p.cur()) {
		p.unexpected()
	}
	return p.parsePostfix(&Name{p.identifier()})
}

// parseUpdate reads UPDATE table [AS alias] SET target = value, … WHERE condition.
func (p *parser) parseUpdate() Statement {
	s := &Update{Pos: p.cur().pos}
	p.next()
	s.Table = p.tablePath()
	s.Alias = p.alias(false)
	p.expectWord(wSET)
	for {
		item := UpdateItem{Pos: p.cur().pos, Target: p.target()}
		p.expect(tEqual)
		item.Value = p.valueOrDefault()
		s.Items = append(s.Items, item)
		if !p.accept(tComma) {
			break
		}
	}
	s.Where = p.where()
	return s
}

// parseDelete reads DELETE [FROM] table [AS alias] WHERE condition.
func (p *parser) parseDelete() Statement {
	s := &Delete{Pos: p.cur().pos}
	p.next()
	p.acceptWord(wFROM)
	s.Table = p.tablePath()
	s.Alias = p.alias(false)
	s.Where = p.where()
	return s
}

// where reads WHERE condition. It may be missing; the analyzer says that it must not.
func (p *parser) where() Expr {
	if !p.acceptWord(wWHERE) {
		return nil
	}
	return p.parseExpr()
}
