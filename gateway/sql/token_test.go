package sql

import (
	"bytes"
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/query/types"
)

func aPrepared() *prepared {
	return &prepared{semantics: 3, expires: 1_800_000_000, instance: "projects/p/instances/i", text: "SELECT 'é'",
		params: map[string]*types.Type{"a": types.Int64Type, "b": types.ArrayOf(types.StringType)}, metadata: []byte("m"),
		deps: []dependency{{kind: onTable, name: "t", incarnation: "7", version: "1 2"}, {kind: onView, name: "v", incarnation: "x", version: "e"}}}
}

func mac(_ context.Context, purpose string, body []byte) ([]byte, error) {
	m := make([]byte, 32)
	for i, c := range append([]byte(purpose), body...) {
		m[i%32] = m[i%32]*31 + c
	}
	return m, nil
}

func TestTokens(t *testing.T) {
	ctx := t.Context()
	p := aPrepared()
	at := &resume{execution: hash{1, 2}, now: time.UnixMicro(1_700_000_000_000_001), stage: stagePosition, position: []byte("here")}
	body, err := p.encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, sealer := range []sealer{nil, mac} {
		token, err := seal(ctx, sealer, purposePrepared, bytes.Clone(body))
		if err != nil {
			t.Fatal(err)
		}
		fields, ok, err := unseal(ctx, sealer, purposePrepared, kindPrepared, token)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		got, ok := decodePrepared(fields)
		if !ok || !reflect.DeepEqual(got, p) {
			t.Errorf("%+v, want %+v", got, p)
		}
		// No part of it is another token.
		for i := range token {
			short, altered := token[:i], bytes.Clone(token)
			altered[i] ^= 0x10
			for _, b := range [][]byte{short, altered} {
				if _, ok, _ := unseal(ctx, sealer, purposePrepared, kindPrepared, b); ok {
					t.Errorf("byte %d: %x is a token", i, b)
				}
			}
		}
		if _, ok, _ := unseal(ctx, sealer, purposeResume, kindResume, token); ok {
			t.Error("a prepared query is a resume token")
		}
		for _, r := range []*resume{at, {execution: hash{9}, now: time.UnixMicro(-5), stage: stageEnd}, {now: time.UnixMicro(0), stage: stageSpool, spool: []byte("id"), offset: 1 << 40}} {
			token, err := seal(ctx, sealer, purposeResume, r.encode(nil))
			if err != nil {
				t.Fatal(err)
			}
			fields, ok, err := unseal(ctx, sealer, purposeResume, kindResume, token)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			if got, ok := decodeResume(fields); !ok || !reflect.DeepEqual(got, r) {
				t.Errorf("%+v, want %+v", got, r)
			}
		}
	}
	// A token without a signature is none where there is login, however right its
	// checksum.
	token, err := seal(ctx, nil, purposePrepared, bytes.Clone(body))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := unseal(ctx, mac, purposePrepared, kindPrepared, token); ok {
		t.Error("a token without a signature")
	}
}

// Whatever a client sends is taken for a token of its kind, or not. What is one is
// written back as it was.
func FuzzPrepared(f *testing.F) {
	body, _ := aPrepared().encode()
	f.Add(body[2:])
	f.Add([]byte{1, 1, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := decodePrepared(b)
		if !ok {
			return
		}
		again, err := p.encode()
		if err != nil {
			t.Fatal(err)
		}
		q, ok := decodePrepared(again[2:])
		if !ok || !reflect.DeepEqual(p, q) {
			t.Errorf("%+v becomes %+v", p, q)
		}
	})
}

func FuzzResume(f *testing.F) {
	f.Add((&resume{stage: stageSpool, spool: []byte("id"), offset: 5}).encode(nil)[2:])
	f.Add((&resume{stage: stageEnd}).encode(nil)[2:])
	f.Fuzz(func(t *testing.T, b []byte) {
		r, ok := decodeResume(b)
		if !ok {
			return
		}
		q, ok := decodeResume(r.encode(nil)[2:])
		if !ok || r.stage != q.stage || !r.now.Equal(q.now) || !bytes.Equal(r.position, q.position) || !bytes.Equal(r.spool, q.spool) || r.offset != q.offset {
			t.Errorf("%+v becomes %+v", r, q)
		}
	})
}
