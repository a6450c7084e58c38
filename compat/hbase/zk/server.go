package zk

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

// Options are the settings of a Server. The zero value is a good server.
type Options struct {
	// MaxConns bounds how many clients are connected at once; the next is
	// disconnected at once. Zero means 1024.
	MaxConns int
	// MinTimeout and MaxTimeout bound the session timeout that a client asks
	// for. Zero means 4 s and 2 min. A client that is silent for that long is
	// disconnected.
	MinTimeout, MaxTimeout time.Duration
	// Log gets a line about each client that is turned away, at DEBUG, and one when
	// none can be accepted, at WARN. Nil means none.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	o.MaxConns = cmp.Or(o.MaxConns, 1024)
	o.MinTimeout = cmp.Or(o.MinTimeout, 4*time.Second)
	o.MaxTimeout = max(cmp.Or(o.MaxTimeout, 2*time.Minute), o.MinTimeout)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// A Server serves one tree of nodes to ZooKeeper clients.
type Server struct {
	o      Options
	secret [32]byte // makes the passwords of sessions

	mu struct {
		sync.Mutex
		tree    *Tree
		zxid    int64
		session int64
		conns   map[*conn]struct{}
		ls      map[net.Listener]struct{}
		closed  bool
	}
	running sync.WaitGroup
}

// NewServer returns a server of an empty tree.
func NewServer(o Options) *Server {
	s := &Server{o: o.withDefaults()}
	rand.Read(s.secret[:])
	// Later than every zxid and session id of an earlier process, unless that
	// published more often than once a microsecond.
	s.mu.zxid = time.Now().UnixMicro()
	s.mu.session = s.mu.zxid << 8
	s.mu.tree = NewTree(nil).publish(&Tree{}, s.mu.zxid, time.Now().UnixMilli())
	s.mu.conns = map[*conn]struct{}{}
	s.mu.ls = map[net.Listener]struct{}{}
	return s
}

// Publish makes t what clients see, and tells those that watch what has
// changed. It does not wait for them.
func (s *Server) Publish(t *Tree) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.mu.tree
	s.mu.zxid++
	s.mu.tree = t.publish(before, s.mu.zxid, time.Now().UnixMilli())
	for c := range s.mu.conns {
		c.notify(before, s.mu.tree)
	}
}

func (s *Server) current() (*Tree, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.tree, s.mu.zxid
}

// Serve answers the clients that l accepts until Close, and then returns nil.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		l.Close()
		return nil
	}
	s.mu.ls[l] = struct{}{}
	s.mu.Unlock()
	pause := 5 * time.Millisecond
	for {
		nc, err := l.Accept()
		if err != nil {
			s.mu.Lock()
			closed := s.mu.closed
			s.mu.Unlock()
			if closed {
				return nil
			}
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("accept ZooKeeper clients: %w", err)
			}
			// Out of file descriptors, most likely: others will be closed.
			s.o.Log.LogAttrs(context.Background(), slog.LevelWarn, "accept ZooKeeper client", slog.String("error", err.Error()))
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
			continue
		}
		pause = 5 * time.Millisecond
		s.start(nc)
	}
}

func (s *Server) start(nc net.Conn) {
	c := &conn{s: s, nc: nc, out: make(chan []byte, queued)}
	c.mu.watches = map[string]watchKind{}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed || len(s.mu.conns) >= s.o.MaxConns {
		s.o.Log.LogAttrs(context.Background(), slog.LevelDebug, "ZooKeeper client turned away", slog.Any("client", c), slog.Int("connections", len(s.mu.conns)))
		nc.Close()
		return
	}
	s.mu.conns[c] = struct{}{}
	s.running.Go(func() {
		defer func() {
			nc.Close()
			s.mu.Lock()
			delete(s.mu.conns, c)
			s.mu.Unlock()
		}()
		c.serve()
	})
}

// Close disconnects all clients, closes the listeners and returns when no
// goroutine of the server is left.
func (s *Server) Close() {
	s.mu.Lock()
	s.mu.closed = true
	for l := range s.mu.ls {
		l.Close()
	}
	for c := range s.mu.conns {
		c.nc.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
}

func (s *Server) newSession() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.session++
	return s.mu.session
}

// password is what the client of a session shows to resume it.
func (s *Server) password(session int64) []byte {
	m := hmac.New(sha256.New, s.secret[:])
	m.Write(binary.BigEndian.AppendUint64(nil, uint64(session)))
	return m.Sum(nil)[:passwordLen]
}

func (s *Server) knows(session int64, password []byte) bool {
	return hmac.Equal(s.password(session), password)
}

// command answers the "four letter words" that operators and probes send
// instead of a frame. None is the length of a frame that is taken.
func (s *Server) command(word string) (string, bool) {
	switch word {
	case "ruok":
		return "imok", true
	case "isro":
		return "rw", true
	case "srvr":
		s.mu.Lock()
		defer s.mu.Unlock()
		return fmt.Sprintf("Zookeeper version: Trestle, read-only\nConnections: %d\nZxid: 0x%x\nMode: standalone\nNode count: %d\n",
			len(s.mu.conns), s.mu.zxid, len(s.mu.tree.nodes)), true
	}
	return "", false
}
