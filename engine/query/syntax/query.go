package syntax

// startsQuery tells whether a query begins at the current token.
func (p *parser) startsQuery() bool {
	n := 0
	for p.at(n).kind == tLParen {
		n++
	}
	return p.queryWordAt(n)
}

// queryWordAt tells whether the nth token is SELECT, or WITH of a query rather than
// of an expression WITH(…).
func (p *parser) queryWordAt(n int) bool {
	switch p.at(n).word {
	case wSELECT:
		return true
	case wWITH:
		return p.at(n+1).kind != tLParen
	}
	return false
}

// parseQuery reads [WITH …] body [ORDER BY …] [LIMIT …].
func (p *parser) parseQuery() *Query {
	p.enter()
	defer p.leave()
	q := &Query{Pos: p.cur().pos}
	if p.word() == wWITH {
		p.parseWith(q)
		if p.word() != wSELECT && !p.is(tLParen) {
			p.unexpected()
		}
	}
	q.Body = p.setOperations(p.queryPrimary())
	p.orderAndLimit(q)
	return q
}

// continueQuery goes on with a query whose first part, in parentheses, has been read.
func (p *parser) continueQuery(first *Query) *Query {
	if !p.continuesQuery() {
		return first
	}
	q := &Query{Pos: first.Pos, Body: p.setOperations(first)}
	p.orderAndLimit(q)
	return q
}

func (p *parser) continuesQuery() bool {
	return p.word() == wORDER || p.word() == wLIMIT || p.atSetOperation()
}

func (p *parser) parseWith(q *Query) {
	p.next()
	if p.word() == wRECURSIVE {
		q.Recursive = true
		p.next()
	}
	for {
		c := CTE{Pos: p.cur().pos, Name: p.identifier()}
		p.expectWord(wAS)
		p.expect(tLParen)
		c.Query = p.queryOrFail()
		p.expect(tRParen)
		q.With = append(q.With, c)
		if !p.accept(tComma) {
			return
		}
		if p.word() == wSELECT {
			return // a trailing comma
		}
		if !isIdentifier(p.cur()) {
			p.expected("keyword SELECT")
		}
	}
}

// queryOrFail reads a query where nothing else can stand.
func (p *parser) queryOrFail() *Query {
	if !p.startsQuery() {
		p.unexpected()
	}
	return p.parseQuery()
}

func (p *parser) queryPrimary() QueryBody {
	switch {
	case p.word() == wSELECT:
		return p.parseSelect()
	case p.is(tLParen):
		p.next()
		q := p.queryOrFail()
		p.expect(tRParen)
		return q
	}
	p.expected(`"("`, "keyword SELECT", "keyword TABLE")
	return nil
}

// hintAndBy reads the BY of ORDER BY, GROUP BY and PARTITION BY.
func (p *parser) hintAndBy() {
	if p.acceptWord(wBY) {
		return
	}
	if !p.atHint() {
		p.expected("@ for hint", "keyword BY")
	}
	p.hint()
	p.expectWord(wBY)
}

// atSetOperation tells whether [FULL|LEFT|INNER [OUTER]] UNION|INTERSECT|EXCEPT
// stands here, rather than a join.
func (p *parser) atSetOperation() bool {
	n := 0
	switch p.word() {
	case wFULL, wLEFT:
		n = 1
		if p.at(1).word == wOUTER {
			n = 2
		}
	case wINNER:
		n = 1
	}
	switch p.at(n).word {
	case wUNION, wINTERSECT:
		return true
	case wEXCEPT:
		return p.at(n+1).kind != tLParen // which is that of * EXCEPT (…)
	}
	return false
}

// setOperations reads the operators behind left. One query may have one operator
// only, unless parentheses say what belongs together.
func (p *parser) setOperations(left QueryBody) QueryBody {
	var set *SetOperation
	for p.atSetOperation() {
		op := SetOperation{Pos: p.cur().pos}
		if p.word() == wFULL || p.word() == wLEFT || p.word() == wINNER {
			op.OuterMode = wordNames[p.word()]
			p.next()
			p.acceptWord(wOUTER)
		}
		p.illegalToken()
		switch p.word() {
		case wUNION:
			op.Op = Union
		case wINTERSECT:
			op.Op = Intersect
		default:
			op.Op = Except
		}
		p.next()
		p.hint()
		switch p.word() {
		case wALL:
			op.All = true
		case wDISTINCT:
		default:
			p.expected("keyword ALL", "keyword DISTINCT")
		}
		p.next()
		if p.word() == wSTRICT {
			op.OuterMode = "STRICT"
			p.next()
		}
		switch {
		case p.word() == wCORRESPONDING:
			op.Corresponding = true
			p.next()
			if p.acceptWord(wBY) {
				op.By = p.identifiers()
			}
		case p.word() == wBY:
			op.ByName = true
			p.next()
			p.expectWord(wNAME)
			if p.acceptWord(wON) {
				op.By = p.identifiers()
			}
		}
		if op.OuterMode != "" && !op.ByName && !op.Corresponding {
			p.fail(op.Pos, op.OuterMode+" in set operations cannot be used without CORRESPONDING")
		}
		if set != nil && (set.Op != op.Op || set.All != op.All) {
			p.fail(op.Pos, "Syntax error: Different set operations cannot be used in the same query without using parentheses for grouping")
		}
		if set != nil && (set.ByName != op.ByName || set.Corresponding != op.Corresponding || set.OuterMode != op.OuterMode) {
			p.fail(op.Pos, "Syntax error: Different column match modes cannot be used in the same query without using parentheses for grouping")
		}
		right := p.queryPrimary()
		if set == nil {
			set = &op
			set.Inputs = []QueryBody{left, right}
			continue
		}
		set.Inputs = append(set.Inputs, right)
	}
	if set == nil {
		return left
	}
	return set
}

func (p *parser) orderAndLimit(q *Query) {
	q.OrderPos = p.cur().pos
	q.OrderBy = p.orderBy()
	if !p.acceptWord(wLIMIT) {
		return
	}
	if p.word() == wALL {
		q.Limit = &Null{p.cur().pos}
		p.next()
	} else {
		q.Limit = p.parseExpr()
		if null, ok := q.Limit.(*Null); ok {
			q.Limit = &Paren{Pos: null.Pos, X: null} // which is not LIMIT ALL
		}
	}
	if p.acceptWord(wOFFSET) {
		q.Offset = p.parseExpr()
	}
}

// orderBy reads ORDER BY …, if it is there.
func (p *parser) orderBy() []OrderItem {
	if !p.acceptWord(wORDER) {
		return nil
	}
	p.hintAndBy()
	var items []OrderItem
	for {
		o := OrderItem{Pos: p.cur().pos, Expr: p.parseExpr()}
		if p.acceptWord(wCOLLATE) {
			if !p.is(tString) && !p.is(tAt) && !p.is(tPositional) && !p.is(tAtAt) {
				p.expected(`"@"`, `"@@"`, "string literal")
			}
			o.Collate = p.parseExpr()
		}
		switch p.word() {
		case wASC:
			p.next()
		case wDESC:
			p.next()
			o.Descending = true
		}
		if p.acceptWord(wNULLS) {
			switch p.word() {
			case wFIRST:
				o.Nulls = NullsFirst
			case wLAST:
				o.Nulls = NullsLast
			default:
				p.expected("keyword FIRST", "keyword LAST")
			}
			p.next()
		}
		items = append(items, o)
		if !p.accept(tComma) {
			return items
		}
	}
}

func (p *parser) parseSelect() *Select {
	s := &Select{Pos: p.cur().pos}
	p.next()
	p.hint()
	switch p.word() {
	case wDISTINCT:
		s.Distinct = true
		p.next()
	case wALL:
		p.next()
	}
	if p.word() == wAS {
		p.next()
		switch p.word() {
		case wSTRUCT:
			s.As = "STRUCT"
			p.next()
		case wVALUE:
			s.As = "VALUE"
			p.next()
		default:
			s.AsType = p.path()
		}
	}
	if p.word() == wFROM {
		p.syntax("SELECT list must not be empty")
	}
	s.Items = make([]SelectItem, 0, 4)
	for {
		s.Items = append(s.Items, p.selectItem())
		if !p.accept(tComma) || p.endsSelectList() {
			break
		}
	}
	if p.acceptWord(wFROM) {
		s.From = p.parseFrom()
	}
	if p.acceptWord(wWHERE) {
		s.Where = p.parseExpr()
	}
	if p.word() == wGROUP {
		s.GroupBy = p.parseGroupBy()
	}
	if p.acceptWord(wHAVING) {
		s.Having = p.parseExpr()
	}
	if p.acceptWord(wQUALIFY) {
		s.Qualify = p.parseExpr()
	}
	if p.acceptWord(wWINDOW) {
		for {
			w := NamedWindow{Name: p.identifier()}
			p.expectWord(wAS)
			w.Window = p.parseWindow()
			s.Windows = append(s.Windows, w)
			if !p.accept(tComma) {
				break
			}
		}
	}
	return s
}

// endsSelectList tells whether the comma before was a trailing one.
func (p *parser) endsSelectList() bool {
	return !p.is(tStar) && !p.startsExpr()
}

func (p *parser) selectItem() SelectItem {
	item := SelectItem{Pos: p.cur().pos}
	if p.is(tStar) {
		item.Star = p.star()
		return item
	}
	item.Expr = p.parseExpr()
	if p.is(tDot) && p.at(1).kind == tStar {
		p.next()
		item.Star = p.star()
		return item
	}
	item.Alias = p.alias(false)
	return item
}

// star reads * [EXCEPT (…)] [REPLACE (…)].
func (p *parser) star() *Star {
	s := &Star{Pos: p.cur().pos}
	p.next()
	if p.word() == wEXCEPT && p.at(1).kind == tLParen {
		p.next()
		s.Except = p.identifiers()
	}
	if p.word() == wREPLACE {
		p.next()
		p.expect(tLParen)
		for {
			item := SelectItem{Pos: p.cur().pos, Expr: p.parseExpr()}
			if p.word() != wAS {
				p.expected("keyword AS")
			}
			item.Alias = p.alias(true)
			s.Replace = append(s.Replace, item)
			if !p.accept(tComma) {
				break
			}
		}
		p.expectAfterList(tRParen)
	}
	return s
}

func (p *parser) parseGroupBy() *GroupBy {
	g := &GroupBy{Pos: p.cur().pos}
	p.next()
	p.hintAndBy()
	if p.acceptWord(wALL) {
		g.All = true
		return g
	}
	for {
		g.Items = append(g.Items, p.groupItem(true))
		if !p.accept(tComma) {
			return g
		}
	}
}

// groupItem reads one element of GROUP BY; GROUPING SETS can stand at the outside only.
func (p *parser) groupItem(outside bool) GroupItem {
	item := GroupItem{Pos: p.cur().pos}
	switch w := p.word(); {
	case w == wROLLUP || w == wCUBE:
		item.Kind = GroupRollup
		if w == wCUBE {
			item.Kind = GroupCube
		}
		p.next()
		p.expect(tLParen)
		for {
			item.Sets = append(item.Sets, p.groupSet())
			if !p.accept(tComma) {
				break
			}
		}
		p.expectAfterList(tRParen)
	case w == wGROUPING && p.at(1).word == wSETS && outside:
		item.Kind = GroupSets
		p.next()
		p.next()
		p.expect(tLParen)
		for {
			if p.word() == wROLLUP || p.word() == wCUBE {
				item.Items = append(item.Items, p.groupItem(false))
			} else {
				item.Sets = append(item.Sets, p.groupSet())
			}
			if !p.accept(tComma) {
				break
			}
		}
		p.expectAfterList(tRParen)
	case p.is(tLParen) && p.at(1).kind == tRParen:
		// () is the set without columns: one group of all rows.
		item.Kind = GroupSets
		item.Sets = [][]Expr{{}}
		p.next()
		p.next()
	default:
		item.Expr = p.parseExpr()
	}
	return item
}

// groupSet reads an expression, (a, b) or ().
func (p *parser) groupSet() []Expr {
	if p.is(tLParen) && p.at(1).kind == tRParen {
		p.next()
		p.next()
		return []Expr{}
	}
	switch x := p.parseExpr().(type) {
	case *StructLiteral:
		if x.Tuple {
			set := make([]Expr, len(x.Values))
			for i, v := range x.Values {
				set[i] = v.X
			}
			return set
		}
		return []Expr{x}
	case *Paren:
		return []Expr{x.X}
	default:
		return []Expr{x}
	}
}

// parseWindow reads what stands behind OVER, or behind AS in a WINDOW clause.
func (p *parser) parseWindow() *Window {
	w := &Window{Pos: p.cur().pos}
	if isIdentifier(p.cur()) {
		id := p.identifier()
		w.Name = &id
		return w
	}
	if !p.accept(tLParen) {
		p.unexpected()
	}
	if isIdentifier(p.cur()) {
		id := p.identifier()
		w.Name = &id
	}
	if p.acceptWord(wPARTITION) {
		p.hintAndBy()
		w.PartitionBy = p.exprs()
	}
	w.OrderBy = p.orderBy()
	if p.word() == wROWS || p.word() == wRANGE {
		w.Frame = p.parseFrame()
	}
	if w.OrderBy == nil && w.Frame == nil && !p.is(tRParen) {
		p.expected(kindTexts[tRParen], "keyword ORDER", "keyword RANGE", "keyword ROWS")
	}
	p.expect(tRParen)
	return w
}

func (p *parser) parseFrame() *Frame {
	f := &Frame{Pos: p.cur().pos, Rows: p.word() == wROWS}
	p.next()
	if p.acceptWord(wBETWEEN) {
		f.Start = p.frameBound()
		p.expectWord(wAND)
		f.End = p.frameBound()
		return f
	}
	f.Start = p.frameBound()
	f.End = FrameBound{Pos: f.Start.Pos, Kind: CurrentRow}
	return f
}

func (p *parser) frameBound() FrameBound {
	b := FrameBound{Pos: p.cur().pos}
	switch p.word() {
	case wUNBOUNDED:
		p.next()
		switch p.word() {
		case wPRECEDING:
			b.Kind = UnboundedPreceding
		case wFOLLOWING:
			b.Kind = UnboundedFollowing
		default:
			p.expected("keyword FOLLOWING", "keyword PRECEDING")
		}
		p.next()
	case wCURRENT:
		p.next()
		p.expectWord(wROW)
		b.Kind = CurrentRow
	default:
		// AND belongs to BETWEEN here.
		b.Offset = p.parsePrec(precCompare)
		switch p.word() {
		case wPRECEDING:
			b.Kind = Preceding
		case wFOLLOWING:
			b.Kind = Following
		default:
			p.expected("keyword FOLLOWING", "keyword PRECEDING")
		}
		p.next()
	}
	return b
}

// exprs reads expr, expr, ….
func (p *parser) exprs() []Expr {
	list := []Expr{p.parseExpr()}
	for p.accept(tComma) {
		list = append(list, p.parseExpr())
	}
	return list
}
