package filter

import (
	"encoding/binary"
	"slices"
)

// A dfa remembers the sets of threads that a program without assertions has
// come through, as states with a transition per class of bytes. That turns most
// steps into one look into a table, 10 times as fast as moving threads.
// Its memory is limited: when full it starts over, and when starting over does
// not pay it gives up.
type dfa struct {
	m     *machine
	limit int // bytes

	// A state s is the index of its transitions: trans[s+c] is where it goes on
	// a byte of class c. More about it is in states[s/classes].
	start  uint32
	trans  []uint32
	states []dfaState
	pcs    []uint32 // of all states
	index  map[string]uint32
	key    []byte

	bytes  int  // matched since it started over
	starts int  // how often it started over
	given  bool // up
}

type dfaState struct {
	from, to uint32 // in pcs
	match    bool
}

// The state 0 stands for one that is not known yet, the next one for that
// without threads, which nothing leads out of.
const (
	stateUnknown = 0
	deadState    = 1
	firstState   = 2
)

const (
	dfaMemory    = 8 << 20 // of all patterns of a filter
	dfaMinMemory = 16 << 10
	dfaMaxMemory = 1 << 20
	// A state must have served for that many bytes before it is thrown away.
	dfaWorth = 8
)

// run tells whether the program matches b. When ok is false, the dfa cannot
// tell within its memory.
func (d *dfa) run(b []byte) (match, ok bool) {
	if d.given {
		return false, false
	}
	prog := d.m.p.prog
	classes := uint32(prog.classes)
	if d.start == stateUnknown {
		d.m.begin(&d.m.next)
		d.m.follow(&d.m.next, prog.start, 0)
		if d.start, ok = d.state(); !ok {
			return false, false
		}
	}
	d.bytes += len(b)
	s, dead := d.start, deadState*classes
	if s == dead {
		return false, true
	}
	for _, c := range b {
		class := uint32(prog.class[c])
		t := d.trans[s+class]
		if t == stateUnknown {
			if t, ok = d.step(s, c, class); !ok {
				return false, false
			}
		}
		if t == dead {
			return false, true
		}
		s = t
	}
	return d.states[s/classes].match, true
}

// step finds where s goes on c.
func (d *dfa) step(s uint32, c byte, class uint32) (t uint32, ok bool) {
	m, prog := d.m, d.m.p.prog
	m.begin(&m.next)
	state := d.states[s/uint32(prog.classes)]
	for _, pc := range d.pcs[state.from:state.to] {
		if in := &prog.inst[pc]; prog.takes(in, c) {
			m.follow(&m.next, in.out, 0)
		}
	}
	starts := d.starts
	if t, ok = d.state(); ok && d.starts == starts { // else s is gone
		d.trans[s+class] = t
	}
	return t, ok
}

// state returns the state of the threads in m.next.
func (d *dfa) state() (s uint32, ok bool) {
	n := &d.m.next
	if len(n.pcs) == 0 && !n.match {
		return deadState * uint32(d.m.p.prog.classes), true
	}
	slices.Sort(n.pcs)
	d.key = d.key[:0]
	if n.match {
		d.key = append(d.key, 1)
	}
	for _, pc := range n.pcs {
		d.key = binary.LittleEndian.AppendUint32(d.key, pc)
	}
	if s, ok := d.index[string(d.key)]; ok {
		return s, true
	}
	classes := d.m.p.prog.classes
	// The state, its transitions, its threads twice and its place in the map.
	if need := 100 + 4*classes + 2*len(d.key); d.index == nil || d.used()+need > d.limit {
		if need > d.limit || d.index != nil && d.bytes < dfaWorth*len(d.states) {
			*d = dfa{m: d.m, given: true}
			return 0, false
		}
		d.index = make(map[string]uint32)
		d.states = append(d.states[:0], make([]dfaState, firstState)...)
		d.trans = append(d.trans[:0], make([]uint32, firstState*classes)...)
		d.pcs = d.pcs[:0]
		d.start = stateUnknown
		d.bytes = 0
		d.starts++
	}
	s = uint32(len(d.trans))
	from := uint32(len(d.pcs))
	d.pcs = append(d.pcs, n.pcs...)
	d.states = append(d.states, dfaState{from: from, to: uint32(len(d.pcs)), match: n.match})
	d.trans = append(d.trans, make([]uint32, classes)...)
	d.index[string(d.key)] = s
	return s, true
}

func (d *dfa) used() int {
	return 100*len(d.states) + 4*len(d.trans) + 8*len(d.pcs)
}

// classify sorts the bytes into classes that no instruction tells apart.
func (p *program) classify() {
	var single [256]bool
	for i := range p.inst {
		if p.inst[i].op == opByte {
			single[p.inst[i].b] = true
		}
	}
	p.classes = 1
	for _, s := range p.sets {
		// A class of which s holds only a part is split.
		var in, split [256]int // of a class: 1 some bytes in, 2 some out; the new class
		for b := range 256 {
			if s.has(byte(b)) {
				in[p.class[b]] |= 1
			} else {
				in[p.class[b]] |= 2
			}
		}
		for b := range 256 {
			if c := p.class[b]; in[c] == 3 && s.has(byte(b)) {
				if split[c] == 0 {
					split[c] = p.classes
					p.classes++
				}
				p.class[b] = uint8(split[c])
			}
		}
	}
	var members [256]int
	for _, c := range p.class {
		members[c]++
	}
	for b, alone := range single {
		if c := p.class[b]; alone && members[c] > 1 {
			members[c]--
			p.class[b] = uint8(p.classes)
			members[p.classes] = 1
			p.classes++
		}
	}
}
