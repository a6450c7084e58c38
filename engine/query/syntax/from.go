package syntax

import (
	"fmt"
	"strings"
)

// parseFrom reads what stands behind FROM. Commas and joins bind alike, from left to
// right.
func (p *parser) parseFrom() TableExpr {
	left := p.joins(p.tablePrimary())
	for n := 2; p.is(tComma); n++ {
		p.tables(n)
		at := p.cur().pos
		p.next()
		right := p.tablePrimary()
		left = p.joins(&Join{Pos: at, Kind: CrossJoin, Comma: true, Left: left, Right: right})
	}
	return left
}

// tables fails if a FROM clause joins too many: a join knows the columns of all
// before it, so that work is the square of their number.
func (p *parser) tables(n int) {
	if n > maxTables {
		p.fail(p.cur().pos, fmt.Sprintf("FROM clause has more than %d tables", maxTables))
	}
}

// A pendingJoin is a join with the conditions that stand right behind its table.
type pendingJoin struct {
	join  *Join
	words []token // ON or USING
	on    []joinCondition
}

// A joinCondition is ON or USING.
type joinCondition struct {
	on    Expr
	using []Identifier
}

// joins reads the joins behind left, up to a comma.
func (p *parser) joins(left TableExpr) TableExpr {
	var pending []pendingJoin
	transform := false
	for n := 2; ; n++ {
		j := p.joinOperator()
		if j == nil {
			break
		}
		p.tables(n)
		j.Right = p.tablePrimary()
		one := pendingJoin{join: j}
		for p.word() == wON || p.word() == wUSING {
			one.words = append(one.words, *p.cur())
			if p.acceptWord(wON) {
				one.on = append(one.on, joinCondition{on: p.parseExpr()})
				continue
			}
			p.next()
			one.on = append(one.on, joinCondition{using: p.identifiers()})
		}
		if len(one.on) > 0 && j.Kind == CrossJoin {
			p.fail(one.words[0].pos, wordNames[one.words[0].word]+" clause cannot be used with CROSS JOIN")
		}
		transform = transform || len(one.on) > 1
		pending = append(pending, one)
	}
	if transform {
		return p.consecutive(left, pending)
	}
	for _, one := range pending {
		one.join.Left = left
		if len(one.on) == 1 {
			one.join.On, one.join.Using = one.on[0].on, one.on[0].using
		}
		left = one.join
	}
	return left
}

// consecutive pairs conditions with joins as parentheses: in a JOIN b JOIN c ON x ON
// y, x belongs to the second join.
func (p *parser) consecutive(left TableExpr, pending []pendingJoin) TableExpr {
	needed, given := 0, 0
	// open are joins that still want a condition, and the tables before them.
	type open struct {
		left TableExpr
		join *Join
	}
	var stack []open
	for _, one := range pending {
		given += len(one.on)
		if one.join.Kind == CrossJoin {
			one.join.Left = left
			left = one.join
			continue
		}
		needed++
		right := one.join.Right
		stack = append(stack, open{left, one.join})
		left = right
		for i, c := range one.on {
			if len(stack) == 0 {
				p.fail(one.words[i].pos, fmt.Sprintf("Syntax error: The number of join conditions is %d but the number of joins that require "+
					"a join condition is only %d. Unexpected keyword %s", given, needed, wordNames[one.words[i].word]))
			}
			top := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			top.join.Left, top.join.Right = top.left, left
			top.join.On, top.join.Using = c.on, c.using
			left = top.join
		}
	}
	if len(stack) > 0 {
		j := stack[0].join
		p.fail(j.Pos, fmt.Sprintf("Syntax error: The number of join conditions is %d but the number of joins that require a join "+
			"condition is %d. %s must have an ON or USING clause", given, needed, joinName(j.Kind)))
	}
	return left
}

func joinName(k JoinKind) string {
	return [...]string{"INNER JOIN", "CROSS JOIN", "LEFT OUTER JOIN", "RIGHT OUTER JOIN", "FULL OUTER JOIN"}[k]
}

// joinOperator reads [kind] JOIN, or returns nil.
func (p *parser) joinOperator() *Join {
	j := &Join{Pos: p.cur().pos}
	switch p.word() {
	case wJOIN:
	case wINNER:
		if p.atSetOperation() {
			return nil
		}
		p.next()
	case wCROSS:
		j.Kind = CrossJoin
		p.next()
	case wLEFT, wRIGHT, wFULL:
		if p.atSetOperation() {
			return nil
		}
		switch p.word() {
		case wLEFT:
			j.Kind = LeftJoin
		case wRIGHT:
			j.Kind = RightJoin
		default:
			j.Kind = FullJoin
		}
		p.next()
		p.acceptWord(wOUTER)
	case wNATURAL:
		p.fail(p.cur().pos, "Natural join not supported")
	default:
		return nil
	}
	if p.at(0).kind == tIdent && strings.EqualFold(p.image(p.cur()), "HASH") {
		p.next()
	}
	j.Pos = p.cur().pos
	p.expectWord(wJOIN)
	p.hint()
	return j
}

// tablePrimary reads one table, with its alias.
func (p *parser) tablePrimary() TableExpr {
	t := p.cur()
	switch {
	case t.word == wUNNEST:
		u := p.parseUnnest()
		p.plainTable()
		u.Alias = p.tableAlias()
		u.Offset = p.withOffset()
		return u
	case t.kind == tLParen:
		switch x := p.parenTable().(type) {
		case *SubqueryTable:
			p.plainTable()
			x.Alias = p.tableAlias()
			p.plainTable()
			return x
		default:
			p.plainTable()
			return x
		}
	case t.kind == tPositional, t.kind == tAt:
		p.fail(t.pos, "Query parameters cannot be used in place of table names")
	case t.word == wLATERAL:
		p.fail(t.pos, "LATERAL is not supported")
	case !isIdentifier(t):
		p.unexpected()
	}
	if p.at(1).kind == tLParen && t.kind == tIdent && strings.EqualFold(p.image(t), "UNPACK") {
		p.next()
		p.next()
		u := &Unpack{Pos: t.pos}
		if p.queryWordAt(0) {
			u.Input = &SubqueryTable{Pos: p.cur().pos, Query: p.parseQuery()}
		} else {
			u.Input = p.tablePrimary()
		}
		p.expect(tRParen)
		u.Alias = p.tableAlias()
		p.plainTable()
		return u
	}
	path := p.tablePath()
	if p.is(tLParen) {
		f := &TableFunction{Pos: t.pos, Name: path}
		p.next()
		if p.queryWordAt(0) {
			p.syntax("Each subquery argument for table-valued function calls must be enclosed in parentheses. To fix this, replace SELECT... with (SELECT...)")
		}
		f.Args = p.arguments(false)
		p.expect(tRParen)
		p.hint()
		f.Alias = p.tableAlias()
		p.plainTable()
		return f
	}
	if p.is(tMinus) && len(path.Names) == 1 {
		p.unexpected()
	}
	p.plainTable()
	p.hint()
	ref := &TableRef{Pos: t.pos, Path: path, Alias: p.tableAlias()}
	ref.Offset = p.withOffset()
	p.plainTable()
	return ref
}

// plainTable refuses what GoogleSQL has behind a table and Bigtable has not.
func (p *parser) plainTable() {
	switch t := p.cur(); {
	case t.kind == tLBracket:
		p.syntax("Array element access is not allowed in the FROM clause without UNNEST; Use UNNEST(<expression>)")
	case t.word == wTABLESAMPLE:
		p.fail(t.pos, "TABLESAMPLE is not supported")
	case t.word == wFOR:
		p.fail(t.pos, "FOR SYSTEM_TIME AS OF is not supported")
	case (t.word == wPIVOT || t.word == wUNPIVOT) && p.at(1).kind == tLParen:
		p.fail(t.pos, wordNames[t.word]+" is not supported")
	}
}

// tableAlias reads [AS] name behind a table.
func (p *parser) tableAlias() *Identifier {
	if w := p.word(); (w == wPIVOT || w == wUNPIVOT) && p.at(1).kind == tLParen {
		return nil
	}
	return p.alias(false)
}

func (p *parser) withOffset() *WithOffset {
	if p.word() != wWITH {
		return nil
	}
	o := &WithOffset{Pos: p.cur().pos}
	p.next()
	p.expectWord(wOFFSET)
	o.Alias = p.alias(false)
	return o
}

// tablePath reads a path whose first part may have dashes: my-project.t.
func (p *parser) tablePath() *Path {
	first := *p.cur()
	end, dotted := p.i+1, false
	if first.kind == tIdent {
		for p.toks[end].kind == tMinus && p.toks[end].pos == p.toks[end-1].end && !dotted {
			// Behind a dash come digits or a word, without spaces. The lexer took 1. of
			// a-1.b for a number.
			t := &p.toks[end+1]
			dotted = t.kind == tFloat && strings.IndexByte(p.image(t), '.') == int(t.end-t.pos)-1
			if t.pos != p.toks[end].end || t.kind != tInt && t.kind != tIdent && t.kind != tKeyword && !dotted {
				break
			}
			end += 2
		}
	}
	if end == p.i+1 {
		return p.path()
	}
	last := p.toks[end-1]
	if dotted {
		last.end--
	}
	p.i = end
	if last.kind == tInt {
		p.apart(&last)
	}
	path := &Path{Pos: first.pos, Names: []Identifier{{Pos: first.pos, Name: p.text[first.pos:last.end]}}}
	for dotted || p.accept(tDot) {
		dotted = false
		if p.word() != wNone && p.is(tKeyword) {
			t := p.cur()
			p.next()
			path.Names = append(path.Names, Identifier{Pos: t.pos, Name: p.image(t)})
			continue
		}
		path.Names = append(path.Names, p.identifier())
	}
	return path
}

// parenTable reads (query) or (join), without an alias.
func (p *parser) parenTable() TableExpr {
	p.enter()
	defer p.leave()
	at := p.cur().pos
	p.next()
	if p.queryWordAt(0) {
		q := p.parseQuery()
		p.expect(tRParen)
		return &SubqueryTable{Pos: at, Query: q}
	}
	var left TableExpr
	if p.is(tLParen) {
		left = p.parenTable()
		if sub, ok := left.(*SubqueryTable); ok {
			if p.continuesQuery() || p.is(tRParen) {
				// ((SELECT …) UNION ALL …), ((SELECT …)).
				q := p.continueQuery(sub.Query)
				p.expect(tRParen)
				return &SubqueryTable{Pos: at, Query: q}
			}
			sub.Alias = p.tableAlias()
		}
	} else {
		if !isIdentifier(p.cur()) && p.word() != wUNNEST {
			p.unexpected()
		}
		left = p.tablePrimary()
	}
	join := p.joins(left)
	if join == left {
		p.expectWord(wJOIN)
	}
	p.expect(tRParen)
	return &ParenJoin{Pos: at, Join: join}
}

// parseUnnest reads UNNEST(array [AS alias], … [, mode => …]).
func (p *parser) parseUnnest() *Unnest {
	u := &Unnest{Pos: p.cur().pos}
	p.next()
	p.expect(tLParen)
	p.noQuery("UNNEST")
	if !p.startsExpr() {
		p.unexpected()
	}
	u.Arrays = p.arguments(true)
	if u.Arrays[len(u.Arrays)-1].Name != nil {
		p.expect(tRParen)
		return u
	}
	p.expectAfterList(tRParen)
	return u
}
