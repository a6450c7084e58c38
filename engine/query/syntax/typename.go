package syntax

import "strings"

// parseType reads a type.
func (p *parser) parseType() *TypeName {
	p.enter()
	defer p.leave()
	t := p.cur()
	n := &TypeName{Pos: t.pos}
	switch {
	case t.word == wARRAY:
		n.Kind = "ARRAY"
		p.next()
		p.expect(tLess)
		n.Args = []*TypeName{p.parseType()}
		p.closeAngle()
	case t.word == wSTRUCT:
		n.Kind = "STRUCT"
		p.next()
		if p.accept(tNotEqual) { // <>
			break
		}
		p.expect(tLess)
		switch t := p.cur(); {
		case isIdentifier(t), t.word == wARRAY, t.word == wSTRUCT, t.word == wINTERVAL, t.word == wRANGE:
			p.structFields(n)
		}
		p.closeAngle()
	case t.word == wINTERVAL, t.word == wRANGE:
		p.next()
		n.Path = &Path{Pos: t.pos, Names: []Identifier{{Pos: t.pos, Name: p.image(t)}}}
		if t.word == wRANGE {
			p.expect(tLess)
			n.Args = []*TypeName{p.parseType()}
			p.closeAngle()
		}
	case t.kind == tIdent && p.at(1).kind == tLess && strings.EqualFold(p.image(t), "MAP"):
		n.Kind = "MAP"
		p.next()
		p.next()
		key := p.parseType()
		p.expect(tComma)
		n.Args = []*TypeName{key, p.parseType()}
		p.closeAngle()
	case isIdentifier(t):
		n.Path = p.path()
	default:
		p.unexpected()
	}
	switch {
	case p.is(tLParen) && n.Path != nil:
		p.fail(p.cur().pos, "Parameterized types are not supported")
	case p.word() == wCOLLATE:
		p.fail(p.cur().pos, "Type with collation name is not supported")
	}
	return n
}

// structFields reads [name] type, ….
func (p *parser) structFields(n *TypeName) {
	for {
		var name *Identifier
		if isIdentifier(p.cur()) {
			switch p.at(1).kind {
			case tIdent, tQuoted, tKeyword:
				id := p.identifier()
				name = &id
			}
		}
		n.Names = append(n.Names, name)
		n.Args = append(n.Args, p.parseType())
		if !p.accept(tComma) {
			return
		}
	}
}

// closeAngle takes one >, which may be the first half of >>.
func (p *parser) closeAngle() {
	if t := p.cur(); t.kind == tShiftRight {
		t.kind = tGreater
		t.pos++
		return
	}
	p.expect(tGreater)
}
