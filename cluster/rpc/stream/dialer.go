package stream

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/cluster/rpc"
	"github.com/trestledb/trestle/engine/usertimeout"
)

// Options are the settings of a Dialer.
type Options struct {
	// TLS is spoken if it is set.
	TLS *tls.Config
	// Silence is how long a server that is asked something may be silent before
	// it is taken for lost; a living one answers pings. Default 5 s.
	Silence time.Duration
	// Connect is how long connecting may take. Default 3 s.
	Connect time.Duration
}

// dialer returns what connects. Pings watch one connection to a server only, but each may be
// the one that a path has lost: its own end notices, when what it has sent is not
// acknowledged for four times Silence, or after keepAlive.
func (o *Options) dialer() *net.Dialer {
	return &net.Dialer{KeepAliveConfig: keepAlive, Control: usertimeout.Control(4 * o.Silence)}
}

// A Dialer reaches tablet servers over the network.
type Dialer struct {
	o Options
	// Forwarded counts calls to other processes, Local those within this one, and Lost
	// those whose answer did not come.
	Forwarded, Local, Lost atomic.Int64

	mu     sync.RWMutex
	peers  map[string]*peer
	local  map[string]rpc.TabletServer
	closed bool
}

// NewDialer returns a Dialer.
func NewDialer(o Options) *Dialer {
	if o.Silence == 0 {
		o.Silence = 5 * time.Second
	}
	if o.Connect == 0 {
		o.Connect = 3 * time.Second
	}
	return &Dialer{o: o, peers: map[string]*peer{}, local: map[string]rpc.TabletServer{}}
}

// Here says that an address is that of a server in this process.
func (d *Dialer) Here(addr string, s rpc.TabletServer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.local[addr] = s
}

// Dial implements rpc.Dialer. It connects with the first call.
func (d *Dialer) Dial(addr string) rpc.TabletServer {
	d.mu.RLock()
	s, p := d.local[addr], d.peers[addr]
	d.mu.RUnlock()
	if s != nil {
		d.Local.Add(1)
		return s
	}
	if p == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		if p = d.peers[addr]; p == nil {
			p = &peer{d: d, addr: addr}
			d.peers[addr] = p
		}
	}
	return p
}

// Close ends all connections. Calls under way end as if the servers were lost.
func (d *Dialer) Close() {
	d.mu.Lock()
	d.closed = true
	peers := d.peers
	d.peers = map[string]*peer{}
	d.mu.Unlock()
	for _, p := range peers {
		p.mu.Lock()
		l := p.link
		p.mu.Unlock()
		if l != nil {
			l.fail(errors.New("this process ends"))
			<-l.done
		}
	}
}
