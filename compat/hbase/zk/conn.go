package zk

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

const (
	// maxFrame bounds a request. Clients cut setWatches at 128 KiB.
	maxFrame = 256 << 10
	// maxConnect bounds the request for a session.
	maxConnect = 1 << 10
	maxPath    = 1 << 10
	// maxWatches bounds what one connection can make the server remember.
	maxWatches = 1 << 10
	// queued is how many answers may wait for a client that does not read. Then
	// its requests wait; a client that an event cannot reach is disconnected,
	// and learns of the change when it sets its watches again.
	queued = 64
	// handshake is how long a connection may take to ask for a session.
	handshake = 10 * time.Second
	// passwordLen is that of ZooKeeper's session passwords.
	passwordLen = 16
)

func itoa(n int) string { return strconv.Itoa(n) }

// A watchKind says what a watch waits for. A watch is gone once it has fired.
type watchKind uint8

const (
	watchData     watchKind = 1 << iota // set by getData: changed or deleted
	watchExists                         // set by exists: created, changed or deleted
	watchChildren                       // set by getChildren: a child more or less, or deleted
)

// A conn is a client's connection. Its own goroutine reads, another writes.
type conn struct {
	s       *Server
	nc      net.Conn
	out     chan []byte // closed by the reader, its only sender beside Server.Publish
	timeout time.Duration
	mu      struct {
		sync.Mutex
		watches map[string]watchKind
		closed  bool // out is
	}
}

func (c *conn) serve() {
	// Half-open connections end here: a client pings at a third of its timeout.
	if c.nc.SetDeadline(time.Now().Add(handshake)) != nil {
		return
	}
	r := bufio.NewReaderSize(c.nc, 4<<10)
	var head [4]byte
	if _, err := readFull(r, head[:]); err != nil {
		return
	}
	if answer, ok := c.s.command(string(head[:])); ok {
		c.nc.Write([]byte(answer)) //nolint:errcheck // the connection ends here either way
		return
	}
	b, err := readBody(r, nil, head, maxConnect)
	if err != nil {
		return
	}
	answer, ok := c.connect(b)
	if answer == nil {
		return
	}
	if _, err := c.nc.Write(answer); err != nil || !ok {
		return
	}

	var writing sync.WaitGroup
	writing.Go(c.write)
	defer writing.Wait()
	defer func() {
		c.mu.Lock()
		c.mu.closed = true
		close(c.out)
		c.mu.Unlock()
	}()
	var buf []byte
	for {
		if err = c.nc.SetReadDeadline(time.Now().Add(c.timeout)); err != nil {
			return
		}
		if buf, err = readFrame(r, buf, maxFrame); err != nil {
			return
		}
		answer, last := c.answer(buf)
		if answer == nil {
			return
		}
		c.out <- answer
		if last {
			return
		}
		if cap(buf) > 16<<10 {
			buf = nil
		}
	}
}

func readFull(r *bufio.Reader, b []byte) (int, error) {
	for n := range b {
		c, err := r.ReadByte()
		if err != nil {
			return n, err
		}
		b[n] = c
	}
	return len(b), nil
}

// write sends what is in c.out, and after an error throws it away until the
// reader has noticed.
func (c *conn) write() {
	w := bufio.NewWriterSize(c.nc, 4<<10)
	broken := false
	for b := range c.out {
		if broken {
			continue
		}
		err := c.nc.SetWriteDeadline(time.Now().Add(c.timeout))
		if err == nil {
			_, err = w.Write(b)
		}
		if err == nil && len(c.out) == 0 {
			err = w.Flush()
		}
		if err != nil {
			broken = true
			c.nc.Close()
		}
	}
	if !broken {
		w.Flush() //nolint:errcheck // no client is left to be told
	}
}

// connect answers the request for a session, with ok unless the session that is
// to be resumed is not one of this process's. The client learns that as the
// expiry of the session. The answer is nil if the request makes no sense.
func (c *conn) connect(b []byte) (answer []byte, ok bool) {
	r := reader{b: b}
	r.int32() // protocol version: there is only 0
	r.int64() // last zxid seen: sessions of another process are not resumed
	timeout := time.Duration(r.int32()) * time.Millisecond
	session := r.int64()
	password := r.buffer()
	if r.bad {
		return nil, false
	}
	asksReadOnly := len(r.b) > 0
	c.timeout = min(max(timeout, c.s.o.MinTimeout), c.s.o.MaxTimeout)
	ok = true
	if session == 0 {
		session = c.s.newSession()
	} else if !c.s.knows(session, password) {
		ok, session = false, 0
	}
	out := appendInt32(beginFrame(), 0)
	if ok {
		out = appendInt32(out, int32(c.timeout/time.Millisecond))
		out = appendInt64(out, session)
		out = appendBuffer(out, c.s.password(session))
	} else {
		out = appendInt32(out, 0)
		out = appendInt64(out, 0)
		out = appendBuffer(out, make([]byte, passwordLen))
	}
	if asksReadOnly {
		// Not true of writes; but a client told so would go on looking for a
		// server that takes them.
		out = append(out, 0)
	}
	return endFrame(out), ok
}

// answer returns the reply to a request, nil if the connection cannot go on,
// and whether it was the last.
func (c *conn) answer(b []byte) (reply []byte, last bool) {
	r := reader{b: b}
	xid, op := r.int32(), r.int32()
	if r.bad {
		return nil, false
	}
	t, zxid := c.s.current()
	out := appendInt32(beginFrame(), xid)
	out = appendInt64(out, zxid)
	out = appendInt32(out, errOK)
	fail := func(code int32) []byte {
		binary.BigEndian.PutUint32(out[16:], uint32(code))
		return endFrame(out[:20])
	}

	switch op {
	case opPing, opAuth:
		// Every client that can connect may read; there is nothing else to authorize.
		return endFrame(out), false
	case opClose:
		return endFrame(out), true
	case opSync:
		path := r.buffer()
		if r.bad {
			return fail(errMarshalling), false
		}
		return endFrame(appendBuffer(out, path)), false
	case opSetWatches, opSetWatches2:
		// The events of what the client missed follow the answer.
		events, ok := c.setWatches(t, &r, op == opSetWatches2)
		if !ok {
			return nil, false
		}
		out = endFrame(out)
		for _, e := range events {
			out = append(out, e.frame()...)
		}
		return out, false
	case opCreate, opDelete, opSetData, opSetACL, opMulti, opCreate2, opReconfig, opCreateContainer, opDeleteContainer, opCreateTTL:
		return fail(errReadOnly), false
	case opRemoveWatches, opExists, opGetData, opGetACL, opGetChildren, opGetChildren2:
	default:
		return fail(errUnimplemented), false
	}

	path := string(r.buffer())
	if r.bad {
		return fail(errMarshalling), false
	}
	if !validPath(path) {
		return fail(errBadArguments), false
	}
	if op == opRemoveWatches {
		if !c.unwatch(path, r.int32()) {
			return fail(errNoWatcher), false
		}
		return endFrame(out), false
	}
	watch := op != opGetACL && r.bool()
	if r.bad {
		return fail(errMarshalling), false
	}
	if watch {
		// Before the tree is read, or a publication in between would be missed.
		kind := map[int32]watchKind{opExists: watchExists, opGetData: watchData, opGetChildren: watchChildren, opGetChildren2: watchChildren}[op]
		if !c.watch(path, kind) {
			return nil, false
		}
		t, _ = c.s.current()
	}
	n := t.nodes[path]
	if n == nil {
		if watch && op != opExists {
			c.drop(path, watchData|watchChildren)
		}
		return fail(errNoNode), false
	}
	switch op {
	case opExists:
		out = n.appendStat(out)
	case opGetData:
		out = n.appendStat(appendBuffer(out, n.data))
	case opGetACL:
		// All clients ("world", "anyone") may read (1).
		out = appendInt32(out, 1)
		out = appendInt32(out, 1)
		out = appendBuffer(out, "world")
		out = appendBuffer(out, "anyone")
		out = n.appendStat(out)
	default:
		out = appendInt32(out, int32(len(n.children)))
		for _, k := range n.children {
			out = appendBuffer(out, k)
		}
		if op == opGetChildren2 {
			out = n.appendStat(out)
		}
	}
	return endFrame(out), false
}

// watch remembers a watch, unless there are too many.
func (c *conn) watch(path string, kind watchKind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	have, ok := c.mu.watches[path]
	if !ok && len(c.mu.watches) >= maxWatches {
		return false
	}
	c.mu.watches[path] = have | kind
	return true
}

func (c *conn) drop(path string, kinds watchKind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropLocked(path, kinds)
}

func (c *conn) dropLocked(path string, kinds watchKind) {
	if left := c.mu.watches[path] &^ kinds; left != 0 {
		c.mu.watches[path] = left
	} else {
		delete(c.mu.watches, path)
	}
}

// unwatch removes watches of a Watcher.WatcherType and tells whether there
// were any.
func (c *conn) unwatch(path string, typ int32) bool {
	kinds, ok := map[int32]watchKind{1: watchChildren, 2: watchData | watchExists, 3: watchChildren | watchData | watchExists}[typ]
	c.mu.Lock()
	defer c.mu.Unlock()
	if !ok || c.mu.watches[path]&kinds == 0 {
		return false
	}
	c.dropLocked(path, kinds)
	return true
}

// An event tells a client of a change once.
type event struct {
	typ  int32
	path string
}

func (e event) frame() []byte {
	b := appendInt32(beginFrame(), xidEvent)
	b = appendInt64(b, -1)
	b = appendInt32(b, errOK)
	b = appendInt32(b, e.typ)
	b = appendInt32(b, stateConnected)
	return endFrame(appendBuffer(b, e.path))
}

// setWatches takes over the watches of a client that comes back. Those whose
// node changed after the zxid that the client saw last fire instead.
func (c *conn) setWatches(t *Tree, r *reader, two bool) ([]event, bool) {
	since := r.int64()
	lists := make([][]string, 3, 5)
	for i := range lists {
		lists[i] = r.strings(nil)
	}
	if two {
		// Persistent watches: addWatch is unimplemented, so none can be here.
		persistent := r.strings(r.strings(nil))
		if len(persistent) > 0 {
			return nil, false
		}
	}
	if r.bad {
		return nil, false
	}
	var events []event
	for i, kind := range []watchKind{watchData, watchExists, watchChildren} {
		for _, p := range lists[i] {
			n := t.nodes[p]
			switch {
			case kind == watchExists && n != nil:
				events = append(events, event{eventCreated, p})
			case kind != watchExists && n == nil:
				events = append(events, event{eventDeleted, p})
			case kind == watchData && n.modified > since:
				events = append(events, event{eventChanged, p})
			case kind == watchChildren && n.childrenModified > since:
				events = append(events, event{eventChildren, p})
			default:
				if len(p) > maxPath || !c.watch(p, kind) {
					return nil, false
				}
			}
		}
	}
	// What was published meanwhile found only the watches that were set by then.
	if now, _ := c.s.current(); now != t {
		c.notify(t, now)
	}
	return events, true
}

// notify fires the watches of what differs between two trees.
func (c *conn) notify(before, after *Tree) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return
	}
	for p, kinds := range c.mu.watches {
		old, now := before.nodes[p], after.nodes[p]
		var e event
		switch {
		case old == nil && now != nil && kinds&watchExists != 0:
			e, kinds = event{eventCreated, p}, watchExists
		case old != nil && now == nil:
			e = event{eventDeleted, p}
		case old == nil || now == nil:
			continue
		case old.modified != now.modified && kinds&(watchData|watchExists) != 0:
			e, kinds = event{eventChanged, p}, watchData|watchExists
		case old.childrenModified != now.childrenModified && kinds&watchChildren != 0:
			e, kinds = event{eventChildren, p}, watchChildren
		default:
			continue
		}
		c.dropLocked(p, kinds)
		select {
		case c.out <- e.frame():
		default:
			c.nc.Close()
			return
		}
	}
}

func (c *conn) String() string { return fmt.Sprint(c.nc.RemoteAddr()) }
