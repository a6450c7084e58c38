package iam

import (
	"fmt"
	"slices"

	"github.com/trestledb/trestle/engine/schema"
)

// Limits of a condition.
const (
	maxCondition = 16 << 10 // bytes
	maxFamilies  = 100
)

// ParseCondition returns the families that a condition's expression names,
// sorted, each once. The error says what is understood.
func ParseCondition(expr string) ([]string, error) {
	if len(expr) > maxCondition {
		return nil, fmt.Errorf("the expression is longer than %d bytes", maxCondition)
	}
	p := &condition{rest: expr}
	families, ok := p.parse()
	if !ok {
		return nil, fmt.Errorf(`the expression is not understood at byte %d: it must be resource.family == "name" or resource.family in ["name", …]`,
			len(expr)-len(p.rest))
	}
	if len(families) > maxFamilies {
		return nil, fmt.Errorf("the expression names %d families, more than %d", len(families), maxFamilies)
	}
	slices.Sort(families)
	return slices.Compact(families), nil
}

// A condition is an expression being parsed.
type condition struct{ rest string }

func (c *condition) parse() (families []string, ok bool) {
	if !c.take("resource.family") {
		return nil, false
	}
	switch {
	case c.take("=="):
		name, ok := c.name()
		if !ok {
			return nil, false
		}
		families = []string{name}
	case c.take("in"):
		if !c.take("[") {
			return nil, false
		}
		for {
			name, ok := c.name()
			if !ok {
				return nil, false
			}
			families = append(families, name)
			if c.take("]") {
				break
			}
			if !c.take(",") {
				return nil, false
			}
		}
	default:
		return nil, false
	}
	c.space()
	return families, c.rest == ""
}

func (c *condition) space() {
	for c.rest != "" && (c.rest[0] == ' ' || c.rest[0] == '\t' || c.rest[0] == '\n' || c.rest[0] == '\r') {
		c.rest = c.rest[1:]
	}
}

// take skips spaces and then word, if it is there.
func (c *condition) take(word string) bool {
	c.space()
	if len(c.rest) < len(word) || c.rest[:len(word)] != word {
		return false
	}
	c.rest = c.rest[len(word):]
	return true
}

// name reads a quoted family name, in which nothing needs escaping.
func (c *condition) name() (string, bool) {
	c.space()
	if c.rest == "" || c.rest[0] != '"' && c.rest[0] != '\'' {
		return "", false
	}
	quote := c.rest[0]
	for i := 1; i < len(c.rest); i++ {
		b := c.rest[i]
		switch {
		case b == quote:
			name := c.rest[1:i]
			if name == "" || len(name) > schema.MaxFamilyName {
				return "", false
			}
			c.rest = c.rest[i+1:]
			return name, true
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', b == '-', b == '_', b == '.':
		default:
			return "", false
		}
	}
	return "", false
}
