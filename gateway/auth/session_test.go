package auth_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"cloud.google.com/go/iam/apiv1/iampb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/auth"
	"github.com/trestledb/trestle/gateway/wire"
)

// A session is one as a test sees it.
type session struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[bigtablepb.SessionRequest, bigtablepb.SessionResponse]
	id     int64
}

func (f *fixture) session(t *testing.T, tok string, p bigtablepb.OpenTableRequest_Permission) (*session, error) {
	t.Helper()
	payload, err := proto.Marshal(&bigtablepb.OpenTableRequest{TableName: table, Permission: p})
	if err != nil {
		t.Fatal(err)
	}
	s, err := bigtablepb.NewBigtableClient(f.connect(tok)).OpenTable(t.Context())
	if err != nil {
		return nil, err
	}
	if err := s.Send(&bigtablepb.SessionRequest{Payload: &bigtablepb.SessionRequest_OpenSession{OpenSession: &bigtablepb.OpenSessionRequest{Payload: payload}}}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	for range 2 {
		if _, err := s.Recv(); err != nil {
			return nil, err
		}
	}
	return &session{t: t, stream: s}, nil
}

// call returns the answer to a call, its error, and that of the session.
func (s *session) call(m *bigtablepb.TableRequest) (*bigtablepb.TableResponse, error, error) {
	s.t.Helper()
	s.id++
	b, err := proto.Marshal(m)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.stream.Send(&bigtablepb.SessionRequest{Payload: &bigtablepb.SessionRequest_VirtualRpc{VirtualRpc: &bigtablepb.VirtualRpcRequest{RpcId: s.id, Payload: b}}}); err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	for {
		r, err := s.stream.Recv()
		switch {
		case err != nil:
			return nil, nil, err
		case r.GetError() != nil:
			return nil, status.ErrorProto(r.GetError().GetStatus()), nil
		case r.GetVirtualRpc() != nil:
			out := new(bigtablepb.TableResponse)
			return out, proto.Unmarshal(r.GetVirtualRpc().GetPayload(), out), nil
		}
	}
}

func (s *session) set(family string) (error, error) {
	s.t.Helper()
	_, err, gone := s.call(&bigtablepb.TableRequest{Payload: &bigtablepb.TableRequest_MutateRow{MutateRow: &bigtablepb.SessionMutateRowRequest{Key: []byte("secret-row-key"),
		Mutations: []*bigtablepb.Mutation{{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{FamilyName: family, Value: []byte("v")}}}}}}})
	return err, gone
}

// families returns what a read of the row shows.
func (s *session) families() (string, error) {
	s.t.Helper()
	out, err, gone := s.call(&bigtablepb.TableRequest{Payload: &bigtablepb.TableRequest_ReadRow{ReadRow: &bigtablepb.SessionReadRowRequest{Key: []byte("secret-row-key")}}})
	var names []string
	for _, fam := range out.GetReadRow().GetRow().GetFamilies() {
		names = append(names, fam.Name)
	}
	return strings.Join(names, " "), errors.Join(err, gone)
}

const (
	sessionRead      = bigtablepb.OpenTableRequest_PERMISSION_READ
	sessionWrite     = bigtablepb.OpenTableRequest_PERMISSION_WRITE
	sessionReadWrite = bigtablepb.OpenTableRequest_PERMISSION_READ_WRITE
)

// What a session may do is what its caller may, for what it is opened.
func TestSessionOpen(t *testing.T) {
	f := newFixture(t, auth.Options{})
	none, reader, user := f.account("none-acc", false), f.account("reader-acc", false), f.account("user-acc", false)
	f.grant(table, "roles/bigtable.reader "+reader.member(), "roles/bigtable.user "+user.member())
	readOnly := map[string]any{"scope": scopePrefix + "bigtable.data.readonly"}
	admin := map[string]any{"scope": scopePrefix + "bigtable.admin"}
	for _, c := range []struct {
		who  string
		tok  string
		p    bigtablepb.OpenTableRequest_Permission
		want codes.Code
	}{
		{"nobody", "", sessionRead, codes.Unauthenticated},
		{"none", none.token(nil), sessionRead, codes.PermissionDenied},
		{"none", none.token(nil), sessionWrite, codes.PermissionDenied},
		{"none", none.token(nil), 0, codes.InvalidArgument},
		{"reader", reader.token(nil), sessionRead, codes.OK},
		{"reader", reader.token(nil), sessionWrite, codes.PermissionDenied},
		{"reader", reader.token(nil), sessionReadWrite, codes.PermissionDenied},
		{"user", user.token(nil), sessionReadWrite, codes.OK},
		{"user, token for reading", user.token(readOnly), sessionRead, codes.OK},
		{"user, token for reading", user.token(readOnly), sessionWrite, codes.PermissionDenied},
		{"user, token for administration", user.token(admin), sessionRead, codes.PermissionDenied},
	} {
		if _, err := f.session(t, c.tok, c.p); status.Code(err) != c.want {
			t.Errorf("%s opens for %v: %v", c.who, c.p, err)
		}
	}
}

// A session is held to policies as they change, and ends with the last of what
// it was opened for. Each call is audited.
func TestSessionPolicies(t *testing.T) {
	f := newFixture(t, auth.Options{AuditData: true})
	acc := f.account("some-acc", false)
	f.grant(table, "roles/bigtable.user "+acc.member())
	s, err := f.session(t, acc.token(nil), sessionReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	for _, fam := range []string{"a", "b"} {
		if err, gone := s.set(fam); err != nil || gone != nil {
			t.Fatal(err, gone)
		}
	}
	if got, err := s.families(); got != "a b" || err != nil {
		t.Fatalf("read %q, %v", got, err)
	}
	f.grant(table, "roles/bigtable.user "+acc.member()+` resource.family in ["a"]`)
	within := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("a minute after the change: %s", what)
			}
		}
	}
	within("other families can be read", func() bool { got, err := s.families(); return got == "a" && err == nil })
	if err, gone := s.set("b"); status.Code(err) != codes.PermissionDenied || gone != nil {
		t.Errorf("write to another family: %v, %v", err, gone)
	}
	if err, gone := s.set("a"); err != nil || gone != nil {
		t.Error(err, gone)
	}
	f.grant(table, "roles/bigtable.user "+acc.member())
	within("the other families cannot be read again", func() bool { got, err := s.families(); return got == "a b" && err == nil })
	f.grant(table)
	within("the session goes on", func() bool { _, err := s.families(); return status.Code(err) == codes.PermissionDenied })
	want := map[string]bool{"SessionMutateRow OK": true, "SessionMutateRow PermissionDenied": true, "SessionReadRow OK": true, "OpenTable PermissionDenied": true}
	within("lines of the audit log are missing", func() bool {
		for _, l := range f.log.all("audit") {
			method := l["method"].(string)
			delete(want, method[strings.LastIndexByte(method, '/')+1:]+" "+l["code"].(string))
			if l["principal"] == acc.member() && l["resource"] != table {
				t.Errorf("line %v", l)
			}
		}
		return len(want) == 0
	})
	if strings.Contains(f.log.String(), "secret-row-key") {
		t.Error("a row key is in the log")
	}
}

// A received is a stream of a session that gets frames.
type received struct {
	grpc.ServerStream
	ctx    context.Context
	frames chan []byte
}

func (r *received) Context() context.Context { return r.ctx }
func (r *received) SendMsg(any) error        { return nil }
func (r *received) RecvMsg(m any) error {
	return m.(*wire.SessionRequest).DecodeWire(mem.BufferSlice{mem.SliceBuffer(<-r.frames)}, mem.DefaultBufferPool(), nil)
}

// TestSessionContext looks at a session's context, and answers its calls, while other families
// become its caller's: for the race detector.
func TestSessionContext(t *testing.T) {
	b, c := model.New(model.Options{}), &clock{}
	a, err := auth.Open(t.Context(), b, auth.Options{Now: c.now, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	acc, err := a.Accounts().Create(t.Context(), "p", "some-acc", "", "", false)
	if err != nil {
		t.Fatal(err)
	}
	file, _, err := a.Accounts().Mint(t.Context(), acc.Email)
	if err == nil {
		err = a.Reload(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	var family atomic.Value
	family.Store("a")
	a.UsePolicies(func(_ context.Context, resource string) (*iampb.Policy, error) {
		if resource != table {
			return nil, fault.NotFound
		}
		return &iampb.Policy{Version: 3, Bindings: parseBindings("roles/bigtable.user serviceAccount:" + acc.Email + ` resource.family == "` + family.Load().(string) + `"`)}, nil
	})
	info := &tap.Info{FullMethodName: bigtablepb.Bigtable_OpenTable_FullMethodName, Header: metadata.MD{"authorization": {"Bearer " + parseAccount(t, file).token(nil)}}}
	ctx, err := a.Tap(t.Context(), info)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := proto.Marshal(&bigtablepb.OpenTableRequest{TableName: table, Permission: sessionRead})
	if err != nil {
		t.Fatal(err)
	}
	frame, err := proto.Marshal(&bigtablepb.SessionRequest{Payload: &bigtablepb.SessionRequest_OpenSession{OpenSession: &bigtablepb.OpenSessionRequest{Payload: payload}}})
	if err != nil {
		t.Fatal(err)
	}
	r := &received{ctx: ctx, frames: make(chan []byte, 2)}
	err = a.Stream(nil, r, &grpc.StreamServerInfo{FullMethod: info.FullMethodName}, func(_ any, s grpc.ServerStream) error {
		r.frames <- frame
		if err := s.RecvMsg(new(wire.SessionRequest)); err != nil {
			return err
		}
		before, looked := s.Context(), make(chan error)
		go func() {
			err := s.SendMsg(new(bigtablepb.SessionResponse))
			looked <- errors.Join(err, s.Context().Err())
		}()
		family.Store("b")
		c.ahead.Add(int64(auth.PolicyUsed + auth.Recheck))
		r.frames <- frame
		err := s.RecvMsg(new(wire.SessionRequest))
		if s.Context() == before {
			t.Error("the session's context is that of the old families")
		}
		return errors.Join(err, <-looked)
	})
	if err != nil {
		t.Error(err)
	}
}
