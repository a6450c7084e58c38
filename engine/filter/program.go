package filter

// A Program is a compiled filter. It is immutable and may be shared.
type Program struct {
	root   *node
	hints  Hints
	memory int // of a machine, in bytes
}

// Compile checks n, as Validate does, and prepares it for the rows of one read.
// A nil n passes everything.
func Compile(n *Node) (*Program, error) {
	root, patterns, err := compile(n, "filter")
	if err != nil {
		return nil, err
	}
	memory := dfaMemory / max(1, patterns)
	return &Program{
		root:   root,
		hints:  root.hints(),
		memory: max(dfaMinMemory, min(dfaMaxMemory, memory)),
	}, nil
}

// Hints returns what a reader may leave out.
func (p *Program) Hints() Hints { return p.hints }

// IsPassAll tells whether p lets every cell through as it is.
func (p *Program) IsPassAll() bool { return p.root.passes() }

func (n *node) passes() bool {
	if n == nil {
		return true
	}
	if n.Op != Chain {
		return false
	}
	for _, k := range n.children {
		if !k.passes() {
			return false
		}
	}
	return true
}
