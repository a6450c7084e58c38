package sql

import (
	"unicode/utf8"

	"github.com/trestledb/trestle/engine/budget"
	"github.com/trestledb/trestle/engine/fault"
)

const (
	// freeText is how many bytes of text are analyzed without asking for memory: ordinary
	// statements have fewer.
	freeText = 4 << 10
	// pieceBytes is what the analysis of a word or sign takes. Of lists of numbers it took
	// 100 to 190 bytes at once, of subqueries 360, of a list of keys 120.
	pieceBytes = 256
)

// charge takes memory for the analysis of text, the statement or a view that it expands.
// The error is Exhausted.
func (a *analysis) charge(text string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.text += len(text)
	a.due += pieceBytes * pieces(text)
	if a.text <= freeText {
		return nil
	}
	b := a.s.o.Budget
	if !b.Try(a.due - a.taken) {
		if limit := b.Limit(); a.due > limit {
			return fault.New(fault.Exhausted, "The analysis of the statement needs %d bytes of memory, of %d that requests have; see --memory", a.due, limit)
		}
		return budget.Busy()
	}
	a.taken = a.due
	return nil
}

// release gives back what charge has taken.
func (a *analysis) release() {
	a.s.o.Budget.Release(a.taken)
	a.taken = 0
}

// pieces returns how many words and signs text has, also within strings and comments. It has
// hardly more tokens, and to count these would take the memory that is asked for.
func pieces(text string) (n int64) {
	inWord := false
	for i := range len(text) {
		c := text[i]
		word := '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' || c == '_' || c >= utf8.RuneSelf
		if word && !inWord || !word && c > ' ' {
			n++
		}
		inWord = word
	}
	return n
}
