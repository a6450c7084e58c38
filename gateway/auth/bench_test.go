package auth_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"github.com/trestledb/trestle/gateway/auth"
)

// BenchmarkVerify is a token that was verified before.
func BenchmarkVerify(b *testing.B) {
	f := newFixture(b, auth.Options{})
	tok := f.root.token(nil)
	b.Logf("token of %d bytes", len(tok))
	b.ReportAllocs()
	for b.Loop() {
		if _, reason := f.a.Verify(tok); reason != "" {
			b.Fatal(reason)
		}
	}
}

func BenchmarkVerifyParallel(b *testing.B) {
	f := newFixture(b, auth.Options{})
	tok := f.root.token(nil)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, reason := f.a.Verify(tok); reason != "" {
				b.Error(reason)
			}
		}
	})
}

// BenchmarkVerifyFirst is a token that was not seen before: an RSA signature.
func BenchmarkVerifyFirst(b *testing.B) {
	f := newFixture(b, auth.Options{})
	toks := make([]string, 512)
	for i := range toks {
		toks[i] = f.root.token(map[string]any{"n": i})
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if i%len(toks) == 0 {
			f.a.ForgetTokens()
		}
		if _, reason := f.a.Verify(toks[i%len(toks)]); reason != "" {
			b.Fatal(reason)
		}
		i++
	}
}

// BenchmarkRequest is all that authentication and authorization add to a
// request: the tap and the interceptor, without gRPC.
func BenchmarkRequest(b *testing.B) {
	for _, level := range []string{"table", "conditional"} {
		b.Run(level, func(b *testing.B) {
			f := newFixture(b, auth.Options{})
			acc := f.account("some-acc", false)
			if level == "table" {
				f.grant(table, "roles/bigtable.user "+acc.member())
			} else {
				f.grant(table, `roles/bigtable.user `+acc.member()+` resource.family in ["a","b"]`)
			}
			info := &tap.Info{FullMethodName: bigtablepb.Bigtable_MutateRow_FullMethodName,
				Header: metadata.MD{"authorization": {"Bearer " + acc.token(nil)}}}
			ctx := peer.NewContext(context.Background(), &peer.Peer{Addr: &net.TCPAddr{}})
			unary := &grpc.UnaryServerInfo{FullMethod: info.FullMethodName}
			req := mutateRowRequest(b)
			handler := func(context.Context, any) (any, error) { return nil, nil }
			b.ReportAllocs()
			for b.Loop() {
				c, err := f.a.Tap(ctx, info)
				if err == nil {
					_, err = f.a.Unary(c, req, unary, handler)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func FuzzVerify(f *testing.F) {
	fix := newFixture(f, auth.Options{})
	good := fix.root.token(nil)
	access, _ := fix.a.Exchange(fix.root.token(map[string]any{"aud": tokenURI}))
	f.Add(good)
	f.Add(access)
	f.Add(strings.Replace(access, ".", "..", 1))
	f.Add("trestle1.")
	f.Add("trestle1.e30.AAAA")
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, tok string) {
		member, reason := fix.a.Verify(tok)
		if (reason == "") != (tok == good || tok == access) {
			t.Fatalf("%q: %q %q", tok, member, reason)
		}
	})
}

// BenchmarkServer is a write through gRPC, with and without authentication.
func BenchmarkServer(b *testing.B) {
	f := newFixture(b, auth.Options{})
	acc := f.account("some-acc", false)
	f.grant(table, "roles/bigtable.user "+acc.member())
	for _, mode := range []string{"off", "on"} {
		b.Run(mode, func(b *testing.B) {
			conn := f.connect(acc.token(nil))
			if mode == "off" {
				conn = f.open()
			}
			bt := bigtableClient(conn)
			req := &bigtablepb.MutateRowRequest{TableName: table, RowKey: []byte("row"), Mutations: []*bigtablepb.Mutation{setCell("a")}}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := bt.MutateRow(b.Context(), req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
