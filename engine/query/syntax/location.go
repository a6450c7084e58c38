package syntax

import (
	"fmt"
	"unicode/utf8"

	"github.com/trestledb/trestle/engine/fault"
)

// Location returns the line and the column of p, both from 1, as GoogleSQL counts
// them: a column is a character, a tab goes on to the next multiple of eight, and
// \n, \r and \r\n each end a line. A p beyond text is its end.
func Location(text string, p Pos) (line, column int) {
	end := min(max(int(p), 0), len(text))
	line, column = 1, 1
	for i := 0; i < end; {
		switch c := text[i]; {
		case c == '\n':
			line, column = line+1, 1
			i++
		case c == '\r':
			i++
			if i < len(text) && text[i] == '\n' {
				if i == end {
					return line, column // between the two bytes of one line break
				}
				i++
			}
			line, column = line+1, 1
		case c == '\t':
			column = (column-1)/8*8 + 9
			i++
		case c < utf8.RuneSelf:
			column++
			i++
		default:
			_, n := utf8.DecodeRuneInString(text[i:])
			column++
			i += n
		}
	}
	return line, column
}

// errorf returns an error of kind fault.Invalid about the place p of text: what
// format says, and " [at line:column]".
func errorf(text string, p Pos, format string, args ...any) error {
	line, column := Location(text, p)
	return fault.New(fault.Invalid, "%s [at %d:%d]", fmt.Sprintf(format, args...), line, column)
}
