package rest_test

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/gateway"
	"github.com/trestledb/trestle/gateway/auth"
	"github.com/trestledb/trestle/gateway/auth/jws"
	"github.com/trestledb/trestle/gateway/rest"
)

// A fixture is a gateway with authentication over the model, reached both ways.
type fixture struct {
	t    *testing.T
	a    *auth.Auth
	srv  *gateway.Server
	h    *rest.Handler
	http *httptest.Server
	conn *grpc.ClientConn
	log  *logger
}

type logger struct{ lines chan string }

func (l *logger) Write(p []byte) (int, error) {
	select {
	case l.lines <- string(p):
	default:
	}
	return len(p), nil
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, log: &logger{make(chan string, 10000)}}
	b := model.New(model.Options{})
	quiet := slog.New(slog.DiscardHandler)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	f.a, err = auth.Open(t.Context(), b, auth.Options{TokenURI: "http://localhost/token", Audit: slog.New(slog.NewJSONHandler(f.log, nil)), Log: quiet})
	must(err)
	f.srv, err = gateway.New(b, gateway.Options{Auth: f.a, Log: quiet})
	must(err)
	f.h, err = rest.New(f.srv, rest.Options{})
	must(err)
	f.http = httptest.NewServer(f.h)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	go func() { _ = f.srv.Serve(l) }()
	f.conn, err = grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(err)
	t.Cleanup(func() {
		_ = f.conn.Close()
		f.http.Close()
		_ = f.srv.Stop(context.Background())
		f.a.Close()
	})
	return f
}

// account returns an authorization header of a new account.
func (f *fixture) account(id string, root bool) (member, header string) {
	f.t.Helper()
	member, sign := f.signer(id, root)
	return member, "Bearer " + sign(nil)
}

// signer returns a new account and a function that signs its tokens: claims
// replace those of the same name.
func (f *fixture) signer(id string, root bool) (member string, sign func(claims map[string]any) string) {
	f.t.Helper()
	acc, err := f.a.Accounts().Create(f.t.Context(), "p", id, "", "", root)
	if err != nil {
		f.t.Fatal(err)
	}
	file, _, err := f.a.Accounts().Mint(f.t.Context(), acc.Email)
	if err == nil {
		err = f.a.Reload(f.t.Context())
	}
	if err != nil {
		f.t.Fatal(err)
	}
	var d struct {
		ID  string `json:"private_key_id"`
		Key string `json:"private_key"`
	}
	if err := json.Unmarshal(file, &d); err != nil {
		f.t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(d.Key))
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		f.t.Fatal(err)
	}
	return "serviceAccount:" + acc.Email, func(claims map[string]any) string {
		now := time.Now()
		all := map[string]any{"iss": acc.Email, "sub": acc.Email, "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
			"scope": "https://www.googleapis.com/auth/cloud-platform"}
		maps.Copy(all, claims)
		tok, err := jws.Sign(key.(crypto.Signer), d.ID, all)
		if err != nil {
			f.t.Fatal(err)
		}
		return tok
	}
}

// do sends a request and returns the code's name, OK if it was served.
func (f *fixture) do(method, path, header, body string) (name, text string) {
	f.t.Helper()
	code, b := f.send(method, path, header, body)
	if code == http.StatusOK {
		return "OK", b
	}
	var out struct {
		Error struct {
			Code            int
			Status, Message string
		}
	}
	if err := json.Unmarshal([]byte(b), &out); err != nil || out.Error.Code != code {
		f.t.Fatalf("%d %s: %v", code, b, err)
	}
	return out.Error.Status, b
}

// post sends a body, and returns the status code and what is answered.
func (f *fixture) post(header, path, body string) (code int, text string) {
	f.t.Helper()
	return f.send(http.MethodPost, path, header, body)
}

func (f *fixture) send(method, path, header, body string) (code int, text string) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), method, f.http.URL+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if header != "" {
		r.Header.Set("Authorization", header)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestSameDecisions calls every route as nobody, as somebody without grants, as
// a reader and as an administrator, over HTTP and over gRPC, and expects the
// same answers.
func TestSameDecisions(t *testing.T) {
	f := newFixture(t)
	_, root := f.account("root-acc", true)
	_, none := f.account("none-acc", false)
	reader, readerHeader := f.account("reader-acc", false)
	admin, adminHeader := f.account("admin-acc", false)
	policy := `{"policy":{"bindings":[{"role":"roles/bigtable.reader","members":["` + reader + `"]},{"role":"roles/bigtable.admin","members":["` + admin + `"]}]}}`
	if got, text := f.do("POST", "/v1/projects/p:setIamPolicy", root, policy); got != "OK" {
		t.Fatalf("set the policy: %s", text)
	}
	got := map[string]map[string]int{}
	for _, s := range f.h.Samples() {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(s.Descriptor())
		if err != nil {
			t.Fatal(err)
		}
		m := d.(protoreflect.MethodDescriptor)
		for who, header := range map[string]string{"nobody": "", "none": none, "reader": readerHeader, "admin": adminHeader} {
			name, text := f.do(s.Method, s.Path, header, "")
			req, resp := message(t, m.Input()), message(t, m.Output())
			f.h.Bind(s, req)
			ctx := t.Context()
			if header != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", header)
			}
			err := f.conn.Invoke(ctx, s.RPC, req, resp)
			if want := code.Code(status.Code(err)).String(); name != want {
				t.Errorf("%s: %s %s: got %s over HTTP, %s over gRPC (%v)", who, s.Method, s.Path, name, want, err)
			}
			if who == "nobody" && name != "UNAUTHENTICATED" {
				t.Errorf("nobody: %s %s: %s", s.Method, s.Path, text)
			}
			if got[who] == nil {
				got[who] = map[string]int{}
			}
			got[who][name]++
		}
	}
	for who, codes := range got {
		t.Logf("%s: %v", who, codes)
	}
	if got["none"]["PERMISSION_DENIED"] < 90 || got["reader"]["PERMISSION_DENIED"] < 30 || got["admin"]["NOT_FOUND"] < 30 {
		t.Errorf("the routes were not reached: %v", got)
	}
}

func message(t *testing.T, d protoreflect.MessageDescriptor) proto.Message {
	t.Helper()
	m, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return m.New().Interface()
}

// TestNobodyIsAskedFirst sends what could not be decoded: who has no
// credentials is told that, and nothing of the request is read.
func TestNobodyIsAskedFirst(t *testing.T) {
	f := newFixture(t)
	_, root := f.account("root-acc", true)
	for _, header := range []string{"", "Bearer x", "Basic eDp5", "Bearer " + strings.Repeat("x", 20<<10)} {
		if got, text := f.do("POST", "/v2/projects/p/instances?what=1", header, "{"); got != "UNAUTHENTICATED" {
			t.Errorf("%.20q: %s", header, text)
		}
	}
	if got, text := f.do("POST", "/v2/projects/p/instances", root, "{"); got != "INVALID_ARGUMENT" {
		t.Errorf("root: %s", text)
	}
}

// TestAudit expects the lines of HTTP requests to say who asked from where.
func TestAudit(t *testing.T) {
	f := newFixture(t)
	member, root := f.account("root-acc", true)
	if got, text := f.do("GET", "/v2/projects/p/instances/none-1", root, ""); got != "NOT_FOUND" {
		t.Fatal(text)
	}
	select {
	case line := <-f.log.lines:
		for _, want := range []string{member, "GetInstance", "projects/p/instances/none-1", `"127.0.0.1:`, "NotFound"} {
			if !strings.Contains(line, want) {
				t.Errorf("no %s in %s", want, line)
			}
		}
	case <-time.After(time.Minute):
		t.Error("no audit")
	}
}

// TestStop holds a request up while the server stops: Stop waits for it, and
// later ones are refused.
func TestStop(t *testing.T) {
	f := newFixture(t)
	_, root := f.account("root-acc", true)
	in, out := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.http.URL+"/v2/projects/p/instances", in)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", root)
	r.Header.Set("Content-Type", "application/json")
	reading := make(chan struct{})
	f.http.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			r.Body = &toldOf{ReadCloser: r.Body, read: reading}
		}
		f.h.ServeHTTP(w, r)
	})
	answered := make(chan int, 1)
	go func() {
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			answered <- 0
			return
		}
		_ = resp.Body.Close()
		answered <- resp.StatusCode
	}()
	if _, err := out.Write([]byte(`{"instanceId":`)); err != nil {
		t.Fatal(err)
	}
	<-reading
	stopped := make(chan struct{})
	go func() {
		_ = f.srv.Stop(context.Background())
		close(stopped)
	}()
	for range 1000 {
		if got, _ := f.do("GET", "/v2/projects/p/instances", root, ""); got == "UNAVAILABLE" {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if got, text := f.do("GET", "/v2/projects/p/instances", root, ""); got != "UNAVAILABLE" {
		t.Errorf("while stopping: %s", text)
	}
	select {
	case <-stopped:
		t.Error("stopped with a request under way")
	default:
	}
	if _, err := out.Write([]byte(`"inst-1"}`)); err != nil {
		t.Fatal(err)
	}
	_ = out.Close()
	if got := <-answered; got != http.StatusBadRequest { // there are no clusters in it
		t.Errorf("the request under way got %d", got)
	}
	<-stopped
}

// toldOf is a body that closes read when the first of it is read.
type toldOf struct {
	io.ReadCloser
	read chan struct{}
	once sync.Once
}

func (b *toldOf) Read(p []byte) (int, error) {
	b.once.Do(func() { close(b.read) })
	return b.ReadCloser.Read(p)
}

// TestBadTokens logs in with what is no good, over HTTP and gRPC: both refuse
// it in the same way, and neither the answer nor the audit repeats any of it.
func TestBadTokens(t *testing.T) {
	f := newFixture(t)
	member, sign := f.signer("some-acc", true)
	good := sign(nil)
	if got, text := f.do("GET", "/v2/projects/p/instances", "Bearer "+good, ""); got != "OK" {
		t.Fatal(text)
	}
	unsigned := func(alg string) string {
		parts := strings.Split(good, ".")
		return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"`+alg+`","typ":"JWT"}`)) + "." + parts[1] + "."
	}
	now := time.Now()
	for name, tok := range map[string]string{
		"nonsense":              "s3cr3t-nonsense",
		"expired":               sign(map[string]any{"iat": now.Add(-2 * time.Hour).Unix(), "exp": now.Add(-time.Hour).Unix()}),
		"for another service":   sign(map[string]any{"aud": "https://pubsub.googleapis.com/"}),
		"of another's":          sign(map[string]any{"iss": "other@p.iam.trestle.internal"}),
		"without a scope of us": sign(map[string]any{"scope": "https://www.googleapis.com/auth/monitoring.write"}),
		"alg none":              unsigned("none"),
		"alg HS256":             unsigned("HS256"),
		"changed":               good[:len(good)-6] + "AAAAAA",
		"long":                  strings.Repeat("s3cr3t", 2000),
	} {
		got, text := f.do("GET", "/v2/projects/p/instances", "Bearer "+tok, "")
		err := f.conn.Invoke(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+tok),
			"/google.bigtable.admin.v2.BigtableInstanceAdmin/ListInstances", &adminpb.ListInstancesRequest{Parent: "projects/p"}, new(adminpb.ListInstancesResponse))
		if got != "UNAUTHENTICATED" || status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %s over HTTP, %v over gRPC", name, text, err)
		}
		for _, said := range []string{text, status.Convert(err).Proto().String()} {
			for _, secret := range append(strings.Split(tok, "."), member, strings.TrimPrefix(member, "serviceAccount:")) {
				if secret != "" && strings.Contains(said, secret) {
					t.Errorf("%s: %.40q is in %s", name, secret, said)
				}
			}
		}
	}
	for {
		select {
		case line := <-f.log.lines:
			if strings.Contains(line, "s3cr3t") || strings.Contains(line, strings.Split(good, ".")[1]) {
				t.Errorf("the audit repeats a token: %s", line)
			}
			continue
		default:
		}
		break
	}
}

// TestStalePolicy sets a policy by an etag that is not its own any more.
func TestStalePolicy(t *testing.T) {
	f := newFixture(t)
	member, root := f.account("root-acc", true)
	const path = "/v1/projects/p:setIamPolicy"
	body := func(etag string) string {
		return `{"policy":{"etag":"` + etag + `","bindings":[{"role":"roles/bigtable.reader","members":["` + member + `"]}]}}`
	}
	var policy struct{ Etag string }
	got, text := f.do("POST", "/v1/projects/p:getIamPolicy", root, "")
	if err := json.Unmarshal([]byte(text), &policy); got != "OK" || err != nil {
		t.Fatal(text, err)
	}
	if got, text := f.do("POST", path, root, body(policy.Etag)); got != "OK" {
		t.Fatal(text)
	}
	if got, text := f.do("POST", path, root, body(policy.Etag)); got != "ABORTED" {
		t.Errorf("a stale etag: %s", text)
	}
}
