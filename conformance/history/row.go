package history

import (
	"fmt"
	"strings"

	"github.com/anishathalye/porcupine"
)

// slots is the number of timestamps that a row's versioned column uses.
const slots = 3

// A rowState is what a row of the workload can hold. It is comparable.
type rowState struct {
	// versions are the cells of column v, by timestamp; empty means none.
	versions [slots]string
	// count is the newest cell of column n, meaningful if counted.
	count   int64
	counted bool
	// log is the newest cell of column log; empty means none.
	log string
}

// newest returns the value of v with the largest timestamp.
func (s rowState) newest() string {
	for i := slots - 1; i >= 0; i-- {
		if s.versions[i] != "" {
			return s.versions[i]
		}
	}
	return ""
}

// An action is a kind of operation on a row.
type action uint8

const (
	read         action = iota
	setCell             // v at slot := value
	deleteRange         // v: delete slots from slot upwards
	deleteColumn        // n
	deleteRow           //
	deleteAndSet        // delete the row, then v at slot := value, in one request
	increment           // n += amount
	appendLog           // log += value, and n += amount, in one request
	swap                // if the newest v is expect: v at slot := value; else delete n
)

// An input is an operation as it was sent.
type input struct {
	key    string
	action action
	slot   int
	amount int64
	value  string
	expect string
}

func (in input) String() string {
	switch in.action {
	case read:
		return "read"
	case setCell:
		return fmt.Sprintf("set @%d=%s", in.slot, in.value)
	case deleteRange:
		return fmt.Sprintf("delete @%d…", in.slot)
	case deleteColumn:
		return "delete n"
	case deleteRow:
		return "delete row"
	case deleteAndSet:
		return fmt.Sprintf("delete row, set @%d=%s", in.slot, in.value)
	case increment:
		return fmt.Sprintf("n+=%d", in.amount)
	case appendLog:
		return fmt.Sprintf("log+=%s n+=%d", in.value, in.amount)
	case swap:
		return fmt.Sprintf("if v=%s set @%d=%s else delete n", in.expect, in.slot, in.value)
	}
	return "?"
}

// An output is the answer. unknown means that the operation failed in a way
// that does not tell whether it took effect.
type output struct {
	unknown bool
	state   rowState // of a read
	count   int64    // of increment and appendLog
	log     string   // of appendLog
	matched bool     // of swap
}

// step returns the state after in, and whether out is what it answers.
func step(s rowState, in input, out output) (rowState, bool) {
	switch in.action {
	case read:
		return s, out.unknown || out.state == s
	case setCell:
		s.versions[in.slot] = in.value
	case deleteRange:
		for i := in.slot; i < slots; i++ {
			s.versions[i] = ""
		}
	case deleteColumn:
		s.count, s.counted = 0, false
	case deleteRow:
		s = rowState{}
	case deleteAndSet:
		s = rowState{}
		s.versions[in.slot] = in.value
	case increment:
		s.count, s.counted = s.count+in.amount, true
		return s, out.unknown || out.count == s.count
	case appendLog:
		s.count, s.counted = s.count+in.amount, true
		s.log += in.value
		return s, out.unknown || out.count == s.count && out.log == s.log
	case swap:
		matched := s.newest() == in.expect
		if matched {
			s.versions[in.slot] = in.value
		} else {
			s.count, s.counted = 0, false
		}
		return s, out.unknown || out.matched == matched
	}
	return s, true
}

// Model is porcupine's model of single rows: each row is checked by itself.
var Model = porcupine.Model{
	Partition: func(ops []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		var keys []string
		for _, op := range ops {
			k := op.Input.(input).key
			if byKey[k] == nil {
				keys = append(keys, k)
			}
			byKey[k] = append(byKey[k], op)
		}
		out := make([][]porcupine.Operation, len(keys))
		for i, k := range keys {
			out[i] = byKey[k]
		}
		return out
	},
	Init: func() any { return rowState{} },
	Step: func(s, in, out any) (bool, any) {
		next, ok := step(s.(rowState), in.(input), out.(output))
		return ok, next
	},
	Equal: func(a, b any) bool { return a.(rowState) == b.(rowState) },
	DescribeOperation: func(in, out any) string {
		i, o := in.(input), out.(output)
		switch {
		case o.unknown:
			return i.String() + " → ?"
		case i.action == read:
			return i.String() + " → " + describe(o.state)
		case i.action == increment:
			return fmt.Sprintf("%v → %d", i, o.count)
		case i.action == appendLog:
			return fmt.Sprintf("%v → %d %s", i, o.count, o.log)
		case i.action == swap:
			return fmt.Sprintf("%v → %v", i, o.matched)
		}
		return i.String()
	},
	DescribeState: func(s any) string { return describe(s.(rowState)) },
}

func describe(s rowState) string {
	var b strings.Builder
	for i, v := range s.versions {
		if v != "" {
			fmt.Fprintf(&b, "@%d=%s ", i, v)
		}
	}
	if s.counted {
		fmt.Fprintf(&b, "n=%d ", s.count)
	}
	if s.log != "" {
		fmt.Fprintf(&b, "log=%s", s.log)
	}
	if b.Len() == 0 {
		return "nothing"
	}
	return strings.TrimSpace(b.String())
}
