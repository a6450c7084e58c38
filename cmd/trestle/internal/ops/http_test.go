package ops

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/gateway/rest"
)

// endless answers queries without end, and all else at once.
type endless struct{ began chan struct{} }

func (endless) Call(_ context.Context, _ string, _ metadata.MD, _ func(proto.Message) error) (proto.Message, error) {
	return new(adminpb.Instance), nil
}

func (e endless) Stream(_ context.Context, _ string, _ metadata.MD, _ func(proto.Message) error, send func([]byte) error) error {
	b, err := proto.Marshal(&bigtablepb.ExecuteQueryResponse{Response: &bigtablepb.ExecuteQueryResponse_Results{Results: &bigtablepb.PartialResultSet{ResumeToken: make([]byte, 128<<10)}}})
	e.began <- struct{}{}
	for err == nil {
		err = send(b)
	}
	return err
}

// TestClientsThatDoNotRead: their connections break, and requests that wait for them are
// served.
func TestClientsThatDoNotRead(t *testing.T) {
	for name, start := range map[string]func(*httptest.Server){"plain": (*httptest.Server).Start, "TLS": (*httptest.Server).StartTLS} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const stalled = 2
			e := endless{make(chan struct{}, stalled)}
			h, err := rest.New(e, rest.Options{Concurrent: stalled})
			if err != nil {
				t.Fatal(err)
			}
			s := httptest.NewUnstartedServer(h)
			s.Listener = listener{s.Listener, 300 * time.Millisecond}
			start(s)
			t.Cleanup(s.Close)
			for range stalled {
				c, err := net.Dial("tcp", s.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if err := c.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil { // soon full
					t.Fatal(err)
				}
				if name == "TLS" {
					roots := x509.NewCertPool()
					roots.AddCert(s.Certificate())
					c = tls.Client(c, &tls.Config{RootCAs: roots, ServerName: "example.com"})
				}
				if _, err := io.WriteString(c, "POST /v2/projects/p/instances/i:executeQuery HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				<-e.began
			}
			client := s.Client()
			client.Timeout = time.Minute
			resp, err := client.Get(s.URL + "/v2/projects/p/instances/i")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("%d", resp.StatusCode)
			}
		})
	}
}

// TestClientsThatReadSlowly get their answer, as long as they read at all.
func TestClientsThatReadSlowly(t *testing.T) {
	const limit, size = 2 * time.Second, 16 << 20
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, size)) }))
	s.Listener = listener{s.Listener, limit}
	s.Start()
	defer s.Close()
	resp, err := http.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	read := int64(0)
	for begin := time.Now(); time.Since(begin) < limit*3/2; time.Sleep(limit / 40) {
		n, err := io.CopyN(io.Discard, resp.Body, 128<<10)
		if read += n; err != nil {
			t.Fatal(err)
		}
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if read += n; err != nil || read != size {
		t.Errorf("%d of %d bytes came: %v", read, size, err)
	}
}
