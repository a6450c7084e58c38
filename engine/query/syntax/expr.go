package syntax

// Precedences, from the one that binds least. Operators of one precedence go from
// left to right, but comparisons do not follow each other.
const (
	precOr = iota + 1
	precAnd
	precNot
	precCompare
	precBitOr
	precBitXor
	precBitAnd
	precShift
	precAdd
	precConcat
	precMul
)

// startsExpr tells whether an expression can begin with the current token.
func (p *parser) startsExpr() bool {
	switch t := p.cur(); t.kind {
	case tIdent, tQuoted, tInt, tFloat, tString, tBytes, tUnclosed, tIllegal, tPositional, tAt, tAtAt, tLParen, tLBracket, tPlus, tMinus, tTilde:
		return true
	case tKeyword:
		switch t.word {
		case wNULL, wTRUE, wFALSE, wCASE, wCAST, wEXTRACT, wEXISTS, wARRAY, wSTRUCT, wNEW, wINTERVAL, wWITH, wNOT,
			wIF, wLEFT, wRIGHT, wGROUPING, wCOLLATE, wRANGE:
			return true
		}
	}
	return false
}

func (p *parser) parseExpr() Expr { return p.parsePrec(precOr) }

// operator returns the binary operator at the current token.
func (p *parser) operator() (prec int, op string) {
	switch t := p.cur(); t.kind {
	case tKeyword:
		switch t.word {
		case wAND:
			return precAnd, "AND"
		case wOR:
			return precOr, "OR"
		case wIS, wIN, wLIKE, wBETWEEN:
			return precCompare, ""
		case wNOT:
			switch p.at(1).word {
			case wIN, wLIKE, wBETWEEN:
				return precCompare, ""
			}
		}
	case tEqual:
		return precCompare, "="
	case tNotEqual:
		return precCompare, "!="
	case tLess:
		return precCompare, "<"
	case tLessEqual:
		return precCompare, "<="
	case tGreater:
		return precCompare, ">"
	case tGreaterEqual:
		return precCompare, ">="
	case tPipe:
		return precBitOr, "|"
	case tCaret:
		return precBitXor, "^"
	case tAmp:
		return precBitAnd, "&"
	case tShiftLeft:
		return precShift, "<<"
	case tShiftRight:
		return precShift, ">>"
	case tPlus:
		return precAdd, "+"
	case tMinus:
		return precAdd, "-"
	case tConcat:
		return precConcat, "||"
	case tStar:
		return precMul, "*"
	case tSlash:
		return precMul, "/"
	}
	return 0, ""
}

// parsePrec reads an expression of operators that bind at least as lowest.
func (p *parser) parsePrec(lowest int) Expr {
	highest := precMul
	var x Expr
	if t := p.cur(); t.word == wNOT && lowest <= precNot {
		p.enter()
		p.next()
		x = &Unary{Pos: t.pos, Op: "NOT", X: p.parsePrec(precNot)}
		p.leave()
		highest = precNot
	} else {
		x = p.parseUnary()
	}
	for n := 1; ; n++ {
		prec, op := p.operator()
		if prec < lowest || prec > highest || prec == 0 {
			if prec != precCompare || highest != precCompare-1 || lowest >= precCompare {
				break
			}
			p.secondComparison(x)
		}
		p.link(n)
		if highest = prec; prec == precCompare {
			highest--
			x = p.comparison(x, op)
			continue
		}
		at := p.cur().pos
		p.next()
		x = &Binary{Pos: x.At(), OpPos: at, Op: op, X: x, Y: p.parsePrec(prec + 1)}
	}
	return x
}

// secondComparison fails at an operator behind the comparison x, as in a = b = c,
// unless x has an end of its own and IS DISTINCT FROM follows.
func (p *parser) secondComparison(x Expr) {
	switch x := x.(type) {
	case *In, *Quantified:
	case *Is:
		if x.Y != nil {
			p.unexpected()
		}
	default:
		p.unexpected()
	}
	t := p.cur()
	if t.word == wIS {
		n := 1
		if p.at(n).word == wNOT {
			n++
		}
		if p.at(n).word == wDISTINCT {
			return
		}
	}
	what := "comparison"
	if p.acceptWord(wNOT) {
		t = p.cur()
	}
	if t.kind == tKeyword {
		what = wordNames[t.word]
	}
	p.syntax("Expression to the left of " + what + " must be parenthesized")
}

// comparison reads the rest of x op y, x IS …, x [NOT] BETWEEN, IN and LIKE ….
func (p *parser) comparison(x Expr, op string) Expr {
	at, opAt := x.At(), p.cur().pos
	if op != "" {
		p.next()
		if w := p.word(); w == wANY || w == wSOME || w == wALL {
			return p.quantified(&Quantified{Pos: at, OpPos: opAt, X: x, Op: op})
		}
		return &Binary{Pos: at, OpPos: opAt, Op: op, X: x, Y: p.parsePrec(precBitOr)}
	}
	not := p.acceptWord(wNOT)
	word := p.word()
	if not {
		opAt = p.cur().pos
	}
	p.next()
	switch word {
	case wBETWEEN:
		b := &Between{Pos: at, OpPos: opAt, X: x, Not: not, Low: p.parsePrec(precBitOr)}
		if prec, _ := p.operator(); prec == precCompare || prec == precOr {
			p.syntaxAt(b.Low.At(), "Expression in BETWEEN must be parenthesized")
		}
		if !p.acceptWord(wAND) {
			p.unexpected()
		}
		b.High = p.parsePrec(precBitOr)
		return b
	case wIN:
		in := &In{Pos: at, OpPos: opAt, X: x, Not: not}
		hintAt, hinted := p.cur().pos, p.atHint()
		p.hint()
		if !p.is(tLParen) && p.word() != wUNNEST {
			if hinted {
				p.expected(kindTexts[tLParen], "keyword UNNEST")
			}
			p.unexpected()
		}
		in.List, in.Query, in.Array = p.listOrQuery()
		if hinted && in.List != nil {
			p.fail(hintAt, "Syntax error: HINTs cannot be specified on IN clause with value list")
		}
		return in
	case wLIKE:
		if w := p.word(); w == wANY || w == wSOME || w == wALL {
			return p.quantified(&Quantified{Pos: at, OpPos: opAt, X: x, Op: "LIKE", Not: not})
		}
		return &Like{Pos: at, OpPos: opAt, X: x, Not: not, Pattern: p.parsePrec(precBitOr)}
	}
	is := &Is{Pos: at, OpPos: opAt, X: x, Not: p.acceptWord(wNOT)}
	switch p.word() {
	case wNULL, wTRUE, wFALSE, wUNKNOWN:
		is.What = wordNames[p.word()]
		p.next()
	case wDISTINCT:
		is.What = "DISTINCT FROM"
		p.next()
		p.acceptFrom()
		is.Y = p.parsePrec(precBitOr)
	default:
		p.expected("keyword FALSE", "keyword NULL", "keyword TRUE", "keyword UNKNOWN")
	}
	return is
}

// acceptFrom takes FROM. GoogleSQL's messages never say that FROM is expected.
func (p *parser) acceptFrom() {
	if !p.acceptWord(wFROM) {
		p.unexpected()
	}
}

func (p *parser) quantified(q *Quantified) Expr {
	q.All = p.word() == wALL
	p.next()
	p.hint()
	if !p.is(tLParen) && p.word() != wUNNEST {
		p.unexpected()
	}
	q.List, q.Query, q.Array = p.listOrQuery()
	return q
}

// listOrQuery reads (a, b), (query) or UNNEST(array).
func (p *parser) listOrQuery() (list []Expr, q *Query, array Expr) {
	p.enter()
	defer p.leave()
	if p.acceptWord(wUNNEST) {
		p.expect(tLParen)
		p.noQuery("UNNEST")
		array = p.parseExpr()
		if p.accept(tComma) {
			p.fail(p.parseExpr().At(), "UNNEST expression used with IN operator does not allow multiple arguments")
		}
		p.expectAfterList(tRParen)
		return nil, nil, array
	}
	p.expect(tLParen)
	if p.queryWordAt(0) {
		q = p.parseQuery()
		p.expect(tRParen)
		return nil, q, nil
	}
	first := p.parseExpr()
	if sub, ok := first.(*Subquery); ok && sub.Kind == ScalarSubquery && p.is(tRParen) {
		p.next()
		return nil, sub.Query, nil // ((SELECT …)) is a query in two parentheses
	}
	list = []Expr{first}
	for p.accept(tComma) {
		list = append(list, p.parseExpr())
	}
	if len(list) == 1 && !p.is(tRParen) {
		p.expected(kindTexts[tComma])
	}
	p.expectAfterList(tRParen)
	return list, nil, nil
}

// parseUnary reads -x, +x, ~x and what binds closer.
func (p *parser) parseUnary() Expr {
	t := p.cur()
	op := ""
	switch t.kind {
	case tMinus:
		op = "-"
	case tPlus:
		op = "+"
	case tTilde:
		op = "~"
	default:
		return p.parsePostfix(p.parsePrimary())
	}
	p.enter()
	p.next()
	x := &Unary{Pos: t.pos, Op: op, X: p.parseUnary()}
	p.leave()
	return x
}

// parsePostfix reads fields, subscripts and chained calls behind x.
func (p *parser) parsePostfix(x Expr) Expr {
	for n := 1; ; n++ {
		switch t := p.cur(); t.kind {
		case tDot:
			switch p.at(1).kind {
			case tStar:
				return x
			case tLParen:
				p.next()
				p.next()
				path := p.path()
				if !p.accept(tRParen) {
					p.expected(kindTexts[tRParen], kindTexts[tDot])
				}
				if p.is(tLParen) {
					x = p.call(&Call{Pos: x.At(), Name: path, Base: x})
					break
				}
				x = &Extension{Pos: x.At(), Base: x, Path: path}
			default:
				p.next()
				id := p.identifier()
				if p.is(tLParen) {
					x = p.call(&Call{Pos: x.At(), Name: &Path{Pos: id.Pos, Names: []Identifier{id}}, Base: x})
					break
				}
				x = &Dot{Pos: x.At(), Base: x, Name: id}
			}
		case tLBracket:
			p.enter()
			p.next()
			s := &Subscript{Pos: x.At(), Bracket: t.pos, Base: x, Index: p.parseExpr()}
			p.expect(tRBracket)
			p.leave()
			x = s
		case tLParen:
			if _, ok := x.(*Call); ok {
				p.syntax("Double function call parentheses")
			}
			p.syntax("Function call cannot be applied to this expression. Function calls require a path, e.g. a.b.c()")
		default:
			return x
		}
		p.link(n)
	}
}
