package bundle

import (
	"fmt"
	"slices"
	"strings"
)

// maxPairs bounds the pairs of schemas that one comparison looks at. Unions of
// thousands of records would take it further.
const maxPairs = 200_000

// Breaks returns which schemas of a are gone, or describe data that next does
// not read by the rules of Avro's schema resolution; empty if next is backward
// compatible.
func (a *Avro) Breaks(next *Avro) []string {
	var breaks []string
	for i, old := range a.schemas {
		c := comparison{unreadable: map[pair]bool{}}
		if old.name == "" {
			if !slices.ContainsFunc(next.schemas, func(s *schema) bool { return s.name == "" && c.reads(s, old) }) {
				breaks = append(breaks, fmt.Sprintf("no schema reads what schema #%d, of type %s, wrote", i, old))
			}
			continue
		}
		at := slices.IndexFunc(next.schemas, func(s *schema) bool { return s.name == old.name })
		switch {
		case at < 0:
			breaks = append(breaks, old.name+" is gone")
		case !c.reads(next.schemas[at], old):
			text := old.name + " does not read what was written before"
			if c.pairs > maxPairs {
				text = old.name + " is too complex to tell whether it reads what was written before"
			}
			breaks = append(breaks, text)
		}
	}
	return breaks
}

type pair struct{ reader, writer *schema }

// A comparison finds pairs of schemas of which the first cannot read what the
// second wrote. Schemas may be cyclic, so all pairs are taken to do until the
// opposite is shown, again and again until nothing more is.
type comparison struct {
	unreadable map[pair]bool
	assumed    map[pair]bool // in this round
	pairs      int
}

func (c *comparison) reads(reader, writer *schema) bool {
	for known := -1; known < len(c.unreadable); {
		known = len(c.unreadable)
		c.assumed = map[pair]bool{}
		if !c.try(reader, writer) {
			return false
		}
	}
	return true
}

func (c *comparison) try(r, w *schema) bool {
	p := pair{r, w}
	if c.unreadable[p] {
		return false
	}
	if c.assumed[p] {
		return true
	}
	if c.pairs++; c.pairs > maxPairs {
		return false
	}
	c.assumed[p] = true
	ok := c.resolve(r, w)
	if !ok {
		c.unreadable[p] = true
	}
	return ok
}

// promotions are the primitive types that a reader's type reads beside itself.
var promotions = map[string][]string{
	"long": {"int"}, "float": {"int", "long"}, "double": {"int", "long", "float"}, "bytes": {"string"}, "string": {"bytes"},
}

func (c *comparison) resolve(r, w *schema) bool {
	switch {
	case w.kind == "union":
		return !slices.ContainsFunc(w.of, func(b *schema) bool { return !c.try(r, b) })
	case r.kind == "union":
		return slices.ContainsFunc(r.of, func(b *schema) bool { return c.try(b, w) })
	case r.kind != w.kind:
		return slices.Contains(promotions[r.kind], w.kind)
	case r.name != "" && !sameName(r, w):
		return false
	}
	switch r.kind {
	case "array", "map":
		return c.try(r.of[0], w.of[0])
	case "fixed":
		return r.size == w.size
	case "enum":
		if r.dflt {
			return true
		}
		for s := range w.symbols {
			if !r.symbols[s] {
				return false
			}
		}
	case "record":
		written := make(map[string]*field, len(w.fields))
		for _, f := range w.fields {
			written[f.name] = f
		}
		for _, f := range r.fields {
			from := written[f.name]
			for i := 0; from == nil && i < len(f.aliases); i++ {
				from = written[f.aliases[i]]
			}
			if from == nil && !f.dflt || from != nil && !c.try(f.schema, from.schema) {
				return false
			}
		}
	}
	return true
}

// sameName tells whether a named type is called like another, namespaces aside,
// or has it for an alias.
func sameName(r, w *schema) bool {
	last := func(s string) string { return s[strings.LastIndexByte(s, '.')+1:] }
	return last(r.name) == last(w.name) || slices.Contains(r.aliases, w.name)
}
