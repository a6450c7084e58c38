package auth_test

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"cloud.google.com/go/iam/apiv1/iampb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/logtest"
	"github.com/trestledb/trestle/gateway"
	"github.com/trestledb/trestle/gateway/auth"
	"github.com/trestledb/trestle/gateway/auth/jws"
	"github.com/trestledb/trestle/gateway/backend"
	"github.com/trestledb/trestle/gateway/wire"
)

const (
	project  = "projects/p"
	instance = project + "/instances/inst-1"
	table    = instance + "/tables/t"
	tokenURI = "http://127.0.0.1:8087/token"
)

// A fixture is a gateway over the model, with authentication, and an instance
// with a table of families a, b and c.
type fixture struct {
	t    testing.TB
	b    backend.Backend
	a    *auth.Auth
	addr string
	log  *lines
	root *account
	dial credentials.TransportCredentials
}

func newFixture(t testing.TB, o auth.Options, transport ...credentials.TransportCredentials) *fixture {
	t.Helper()
	return fixtureOver(t, model.New(model.Options{}), o, transport...)
}

// fixtureOver is newFixture over b.
func fixtureOver(t testing.TB, b backend.Backend, o auth.Options, transport ...credentials.TransportCredentials) *fixture {
	t.Helper()
	f := &fixture{t: t, b: b, log: &lines{}}
	log := slog.New(slog.NewJSONHandler(f.log, nil))
	if o.TokenURI == "" {
		o.TokenURI = tokenURI
	}
	if o.Names == nil {
		o.Names = []string{"localhost", "127.0.0.1", "bigtable.example.com"}
	}
	o.Log, o.Audit = log, log
	var err error
	if f.a, err = auth.Open(t.Context(), f.b, o); err != nil {
		t.Fatal(err)
	}
	f.dial = insecure.NewCredentials()
	var server credentials.TransportCredentials
	if len(transport) > 0 {
		server, f.dial = transport[0], transport[1]
	}
	srv, err := gateway.New(f.b, gateway.Options{
		Auth:        f.a,
		Credentials: server,
		Reflection:  true,
		Log:         slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = srv.Stop(ctx)
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		f.a.Close()
	})
	if !o.Off {
		f.root = f.account("root-acc", true)
	}
	conn := f.connect(f.rootToken())
	ctx := t.Context()
	if _, err := adminpb.NewBigtableInstanceAdminClient(conn).CreateInstance(ctx, &adminpb.CreateInstanceRequest{
		Parent: project, InstanceId: "inst-1", Instance: &adminpb.Instance{DisplayName: "instance"},
		Clusters: map[string]*adminpb.Cluster{"cl-1": {Location: project + "/locations/local", ServeNodes: 1}},
	}); err != nil {
		t.Fatal(err)
	}
	f.createTable("t")
	return f
}

// rootToken is that of somebody who may do everything; empty if nobody logs in.
func (f *fixture) rootToken() string {
	if f.root == nil {
		return ""
	}
	return f.root.token(nil)
}

func (f *fixture) createTable(id string) {
	f.t.Helper()
	families := map[string]*adminpb.ColumnFamily{"a": {}, "b": {}, "c": {}}
	if _, err := adminpb.NewBigtableTableAdminClient(f.connect(f.rootToken())).CreateTable(f.t.Context(), &adminpb.CreateTableRequest{
		Parent: instance, TableId: id, Table: &adminpb.Table{ColumnFamilies: families}}); err != nil {
		f.t.Fatal(err)
	}
}

// An account is a service account with one key.
type account struct {
	email, keyID string
	key          crypto.Signer
	file         []byte
}

func (a *account) member() string { return "serviceAccount:" + a.email }

// account makes a service account of project p with a key.
func (f *fixture) account(id string, root bool) *account {
	f.t.Helper()
	acc, err := f.a.Accounts().Create(f.t.Context(), "p", id, "", "", root)
	if err != nil {
		f.t.Fatal(err)
	}
	file, _, err := f.a.Accounts().Mint(f.t.Context(), acc.Email)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := f.a.Reload(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	return parseAccount(f.t, file)
}

func parseAccount(t testing.TB, file []byte) *account {
	t.Helper()
	var d struct {
		Email string `json:"client_email"`
		KeyID string `json:"private_key_id"`
		Key   string `json:"private_key"`
	}
	if err := json.Unmarshal(file, &d); err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(d.Key))
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return &account{d.Email, d.KeyID, key.(crypto.Signer), file}
}

const scopePrefix = "https://www.googleapis.com/auth/"

// token returns a token as Google's libraries make it; claims replace those
// of the same name, nil removes one.
func (a *account) token(claims map[string]any) string {
	now := time.Now()
	c := map[string]any{"iss": a.email, "sub": a.email, "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		"scope": scopePrefix + "cloud-platform"}
	for k, v := range claims {
		if v == nil {
			delete(c, k)
		} else {
			c[k] = v
		}
	}
	tok, err := jws.Sign(a.key, a.keyID, c)
	if err != nil {
		panic(err)
	}
	return tok
}

// bearer sends a token, whatever the transport.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}
func (b bearer) RequireTransportSecurity() bool { return false }

// connect returns a connection that sends tok, or nothing if it is empty.
func (f *fixture) connect(tok string) *grpc.ClientConn {
	f.t.Helper()
	opts := []grpc.DialOption{grpc.WithTransportCredentials(f.dial)}
	if tok != "" {
		opts = append(opts, grpc.WithPerRPCCredentials(bearer(tok)))
	}
	conn, err := grpc.NewClient(f.addr, opts...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// grant sets the policy of a resource to bindings, written as "role member" or
// "role member condition".
func (f *fixture) grant(resource string, bindings ...string) {
	f.t.Helper()
	p := &iampb.Policy{Version: 3, Bindings: parseBindings(bindings...)}
	conn := f.connect(f.root.token(nil))
	req := &iampb.SetIamPolicyRequest{Resource: resource, Policy: p}
	var err error
	switch {
	case strings.Contains(resource, "/tables/"), strings.Contains(resource, "/backups/"):
		_, err = adminpb.NewBigtableTableAdminClient(conn).SetIamPolicy(f.t.Context(), req)
	case strings.Contains(resource, "/instances/"):
		_, err = adminpb.NewBigtableInstanceAdminClient(conn).SetIamPolicy(f.t.Context(), req)
	default:
		_, err = iampb.NewIAMPolicyClient(conn).SetIamPolicy(f.t.Context(), req)
	}
	if err != nil {
		f.t.Fatalf("set policy of %s: %v", resource, err)
	}
}

func (f *fixture) set(tok string, family, key string) error {
	_, err := bigtablepb.NewBigtableClient(f.connect(tok)).MutateRow(f.t.Context(), &bigtablepb.MutateRowRequest{
		TableName: table, RowKey: []byte(key), Mutations: []*bigtablepb.Mutation{setCell(family)}})
	return err
}

func setCell(family string) *bigtablepb.Mutation {
	return &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{
		FamilyName: family, ColumnQualifier: []byte("q"), TimestampMicros: 1000, Value: []byte("v")}}}
}

// read returns "row/family row/family …" of a scan.
func (f *fixture) read(tok string, filter *bigtablepb.RowFilter) (string, error) {
	s, err := bigtablepb.NewBigtableClient(f.connect(tok)).ReadRows(f.t.Context(), &bigtablepb.ReadRowsRequest{TableName: table, Filter: filter})
	if err != nil {
		return "", err
	}
	var out []string
	row, family := "", ""
	for {
		m, err := s.Recv()
		if err != nil {
			if err.Error() == "EOF" {
				return strings.Join(out, " "), nil
			}
			return "", err
		}
		for _, c := range m.GetChunks() {
			if len(c.GetRowKey()) > 0 {
				row = string(c.GetRowKey())
			}
			if c.GetFamilyName() != nil {
				family = c.GetFamilyName().GetValue()
			}
			out = append(out, row+"/"+family)
		}
	}
}

// with returns a context that sends several authorization headers.
func with(ctx context.Context, headers ...string) context.Context {
	for _, h := range headers {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", h)
	}
	return ctx
}

// lines collect a log.
type lines struct{ logtest.Buffer }

// all returns the records with the given message.
func (l *lines) all(msg string) (out []map[string]any) {
	for line := range strings.Lines(l.String()) {
		var m map[string]any
		if json.Unmarshal([]byte(line), &m) == nil && m["msg"] == msg {
			out = append(out, m)
		}
	}
	return out
}

func parseBindings(bindings ...string) (out []*iampb.Binding) {
	for _, text := range bindings {
		f := strings.SplitN(text, " ", 3)
		b := &iampb.Binding{Role: f[0], Members: []string{f[1]}}
		if len(f) == 3 {
			b.Condition = condition(f[2])
		}
		out = append(out, b)
	}
	return out
}

const cryptoSHA256 = crypto.SHA256

func bigtableClient(c *grpc.ClientConn) bigtablepb.BigtableClient {
	return bigtablepb.NewBigtableClient(c)
}

var ping = &bigtablepb.PingAndWarmRequest{Name: instance}

// list lists the tables.
func (f *fixture) list(tok string) error {
	_, err := adminpb.NewBigtableTableAdminClient(f.connect(tok)).ListTables(f.t.Context(), &adminpb.ListTablesRequest{Parent: instance})
	return err
}

// mutateRowRequest is a request as the gateway decodes it.
func mutateRowRequest(t testing.TB) *wire.MutateRowRequest {
	t.Helper()
	b, err := proto.Marshal(&bigtablepb.MutateRowRequest{TableName: table, RowKey: []byte("row"), Mutations: []*bigtablepb.Mutation{setCell("a")}})
	if err != nil {
		t.Fatal(err)
	}
	req := new(wire.MutateRowRequest)
	if err := req.DecodeWire(mem.BufferSlice{mem.SliceBuffer(b)}, mem.DefaultBufferPool(), nil); err != nil {
		t.Fatal(err)
	}
	return req
}

// open returns a connection to another gateway over the same tables, without
// authentication.
func (f *fixture) open() *grpc.ClientConn {
	f.t.Helper()
	srv, err := gateway.New(f.b, gateway.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	go func() { _ = srv.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = conn.Close()
		_ = srv.Stop(context.Background())
	})
	return conn
}
