package sweep

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/conformance/target"
)

// A peer is an HTTP/2 connection under the test's full control.
type peer struct {
	t    *testing.T
	conn net.Conn
	fr   *http2.Framer
	enc  *hpack.Encoder
	buf  bytes.Buffer
	next uint32
}

func connect(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, time.Minute)
	if err != nil {
		t.Fatalf("the server does not accept connections: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c
}

func newPeer(t *testing.T, addr string) *peer {
	p := &peer{t: t, conn: connect(t, addr), next: 1}
	p.fr = http2.NewFramer(p.conn, p.conn)
	p.enc = hpack.NewEncoder(&p.buf)
	p.write([]byte(http2.ClientPreface))
	_ = p.fr.WriteSettings()
	return p
}

// write ignores errors: the server may well hang up.
func (p *peer) write(b []byte) { _, _ = p.conn.Write(b) }

func (p *peer) headers(path string, more ...hpack.HeaderField) []byte {
	p.buf.Reset()
	for _, f := range append([]hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path},
		{Name: ":authority", Value: "x"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"}}, more...) {
		_ = p.enc.WriteField(f)
	}
	return bytes.Clone(p.buf.Bytes())
}

// open starts a call and returns its stream.
func (p *peer) open(path string, more ...hpack.HeaderField) uint32 {
	id := p.next
	p.next += 2
	_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.headers(path, more...), EndHeaders: true})
	return id
}

// settle reads what the server has to say for at most d.
func (p *peer) settle(d time.Duration) {
	_ = p.conn.SetReadDeadline(time.Now().Add(d))
	_, _ = io.Copy(io.Discard, p.conn)
}

func message(flag byte, length uint32, body []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flag}, length), body...)
}

const mutateRow = "/google.bigtable.v2.Bigtable/MutateRow"

func TestAbuseWire(t *testing.T) {
	addr := target.Addr(t)
	c := newCanary(t, addr)
	body, err := proto.Marshal(&bigtablepb.MutateRowRequest{TableName: canaryTable, RowKey: []byte("wire"), Mutations: []*bigtablepb.Mutation{setCell("q", "v")}})
	if err != nil {
		t.Fatal(err)
	}
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	_, _ = z.Write(make([]byte, 64<<20))
	_ = z.Close()
	r := rand.New(rand.NewPCG(1, 1))
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	for _, tc := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"connections that say nothing", func(t *testing.T) {
			for range 200 {
				connect(t, addr)
			}
		}},
		{"noise", func(t *testing.T) {
			for range 50 {
				n := connect(t, addr)
				_, _ = n.Write(noise(1 + r.IntN(4096)))
				n.Close()
			}
		}},
		{"HTTP/1.1", func(t *testing.T) {
			n := connect(t, addr)
			_, _ = n.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
			_ = n.SetReadDeadline(time.Now().Add(time.Second))
			_, _ = io.Copy(io.Discard, n)
		}},
		{"a TLS hello", func(t *testing.T) {
			_, _ = connect(t, addr).Write(append([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3}, noise(508)...))
		}},
		{"half a preface", func(t *testing.T) { _, _ = connect(t, addr).Write([]byte(http2.ClientPreface[:10])) }},
		{"noise after the preface", func(t *testing.T) {
			for range 50 {
				n := connect(t, addr)
				_, _ = n.Write(append([]byte(http2.ClientPreface), noise(1+r.IntN(2000))...))
				n.Close()
			}
		}},
		{"frames of noise", func(t *testing.T) {
			for range 30 {
				p := newPeer(t, addr)
				p.open(mutateRow)
				for range 20 {
					_ = p.fr.WriteRawFrame(http2.FrameType(r.IntN(12)), http2.Flags(r.Uint32()), uint32(r.IntN(4)), noise(r.IntN(200)))
				}
				p.conn.Close()
			}
		}},
		{"a message cut off", func(t *testing.T) {
			for n := range len(body) + 5 {
				p := newPeer(t, addr)
				_ = p.fr.WriteData(p.open(mutateRow), n%2 == 0, message(0, uint32(len(body)), body)[:n])
				if n%3 == 0 {
					p.conn.Close()
				}
			}
		}},
		{"a message of 4 GiB, it says", func(t *testing.T) {
			p := newPeer(t, addr)
			_ = p.fr.WriteData(p.open(mutateRow), false, message(0, 0xFFFFFFFF, body))
			_ = p.fr.WriteData(p.open(mutateRow), true, message(0, 256<<20, body))
			p.settle(200 * time.Millisecond)
		}},
		{"more bytes than the message", func(t *testing.T) {
			p := newPeer(t, addr)
			_ = p.fr.WriteData(p.open(mutateRow), true, append(message(0, uint32(len(body)), body), noise(1000)...))
			p.settle(200 * time.Millisecond)
		}},
		{"two messages in a unary call", func(t *testing.T) {
			p := newPeer(t, addr)
			m := message(0, uint32(len(body)), body)
			_ = p.fr.WriteData(p.open(mutateRow), true, append(m, m...))
			p.settle(200 * time.Millisecond)
		}},
		{"no message", func(t *testing.T) {
			p := newPeer(t, addr)
			_ = p.fr.WriteData(p.open(mutateRow), true, nil)
			p.settle(200 * time.Millisecond)
		}},
		{"compression that is none", func(t *testing.T) {
			p := newPeer(t, addr)
			_ = p.fr.WriteData(p.open(mutateRow, hpack.HeaderField{Name: "grpc-encoding", Value: "gzip"}), true, message(1, 100, noise(100)))
			_ = p.fr.WriteData(p.open(mutateRow, hpack.HeaderField{Name: "grpc-encoding", Value: "nonsense"}), true, message(1, 100, noise(100)))
			_ = p.fr.WriteData(p.open(mutateRow), true, message(1, uint32(len(body)), body))
			_ = p.fr.WriteData(p.open(mutateRow), true, message(7, uint32(len(body)), body))
			p.settle(200 * time.Millisecond)
		}},
		{"a compression bomb", func(t *testing.T) {
			p := newPeer(t, addr)
			id := p.open(mutateRow, hpack.HeaderField{Name: "grpc-encoding", Value: "gzip"})
			data := message(1, uint32(bomb.Len()), bomb.Bytes())
			for len(data) > 0 {
				n := min(len(data), 16<<10)
				_ = p.fr.WriteData(id, n == len(data), data[:n])
				data = data[n:]
			}
			p.settle(time.Second)
		}},
		{"streams opened and reset", func(t *testing.T) {
			p := newPeer(t, addr)
			go p.settle(10 * time.Second)
			for range 5000 {
				_ = p.fr.WriteRSTStream(p.open(mutateRow), http2.ErrCodeCancel)
			}
			p.conn.Close()
		}},
		{"more streams than allowed", func(t *testing.T) {
			p := newPeer(t, addr)
			go p.settle(10 * time.Second)
			for range 3000 {
				p.open(mutateRow)
			}
			p.conn.Close()
		}},
		{"a flood of pings", func(t *testing.T) {
			p := newPeer(t, addr)
			go p.settle(10 * time.Second)
			for range 20_000 {
				if p.fr.WritePing(false, [8]byte{}) != nil {
					break
				}
			}
			p.conn.Close()
		}},
		{"a flood of settings", func(t *testing.T) {
			p := newPeer(t, addr)
			for range 10_000 { // the answers stay unread
				if p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}) != nil {
					break
				}
			}
		}},
		{"headers without end", func(t *testing.T) {
			p := newPeer(t, addr)
			_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.headers(mutateRow)})
			for range 500 {
				if p.fr.WriteContinuation(1, false, p.headers(mutateRow, hpack.HeaderField{Name: "x", Value: string(bytes.Repeat([]byte("x"), 8000))})[:8000]) != nil {
					break
				}
			}
		}},
		{"a header of 1 MiB", func(t *testing.T) {
			p := newPeer(t, addr)
			block := p.headers(mutateRow, hpack.HeaderField{Name: "x-big", Value: string(bytes.Repeat([]byte("\xff"), 1<<20))})
			_ = p.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:16<<10]})
			for block = block[16<<10:]; len(block) > 0; block = block[min(len(block), 16<<10):] {
				if p.fr.WriteContinuation(1, len(block) <= 16<<10, block[:min(len(block), 16<<10)]) != nil {
					break
				}
			}
			p.settle(200 * time.Millisecond)
		}},
		{"nonsense in the headers", func(t *testing.T) {
			for _, f := range []hpack.HeaderField{
				{Name: "grpc-timeout", Value: "99999999999999H"}, {Name: "grpc-timeout", Value: "-1S"}, {Name: "content-type", Value: "text/html"},
				{Name: "bigtable-features", Value: "!!!not base64!!!"}, {Name: "x-goog-request-params", Value: "table_name=%zz&&&="},
				{Name: "grpc-accept-encoding", Value: ",,,,"}, {Name: "authorization", Value: "Bearer \x00"}, {Name: "user-agent", Value: string(noise(2000))},
				{Name: "trace-bin", Value: "***"}, {Name: ":path", Value: "again"},
			} {
				p := newPeer(t, addr)
				_ = p.fr.WriteData(p.open(mutateRow, f), true, message(0, uint32(len(body)), body))
				p.settle(50 * time.Millisecond)
			}
			for _, path := range []string{"", "/", "//", "no slash", mutateRow + "/", "/" + string(noise(500))} {
				p := newPeer(t, addr)
				p.open(path)
				p.settle(50 * time.Millisecond)
			}
		}},
		{"a window of nothing", func(t *testing.T) {
			p := newPeer(t, addr)
			_ = p.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			for range 50 {
				_ = p.fr.WriteData(p.open(mutateRow), true, message(0, uint32(len(body)), body))
			}
			p.settle(200 * time.Millisecond)
		}},
		{"window updates that overflow", func(t *testing.T) {
			p := newPeer(t, addr)
			id := p.open(mutateRow)
			for range 4 {
				_ = p.fr.WriteWindowUpdate(0, 1<<31-1)
				_ = p.fr.WriteWindowUpdate(id, 1<<31-1)
			}
			p.settle(200 * time.Millisecond)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.run(t)
			c.sing(t)
		})
	}
}
