package sql

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/varint"
)

// Clients carry two kinds of token, which any gateway and any restart accepts:
//
//	version, kind, fields, [MAC of 16 bytes if there is login], CRC32C
//
// Numbers are varints; text has its length before it.
const (
	tokenVersion = 1
	kindPrepared = 'P'
	kindResume   = 'R'
	macBytes     = 16
	sumBytes     = 4
	// maxToken bounds the length of a token: a statement of 1 MiB fits with what comes
	// with it.
	maxToken = 4 << 20
)

// semantics is the version of what SQL means here. It grows when a statement
// that was prepared before would give other results.
const semantics = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A hash identifies a statement, or an execution of it.
type hash [sha256.Size]byte

// A prepared is what the token of a prepared statement says.
type prepared struct {
	semantics uint64
	expires   int64 // seconds since 1970
	instance  string
	text      string
	params    map[string]*types.Type
	metadata  []byte // a ResultSetMetadata
	deps      []dependency
}

// sealer signs tokens, if there is login.
type sealer func(ctx context.Context, purpose string, body []byte) ([]byte, error)

func appendString[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// seal ends a token.
func seal(ctx context.Context, mac sealer, purpose string, b []byte) ([]byte, error) {
	if mac != nil {
		m, err := mac(ctx, purpose, b)
		if err != nil {
			return nil, err
		}
		b = append(b, m[:macBytes]...)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

// unseal returns the fields of a token, and whether it is one of ours.
func unseal(ctx context.Context, mac sealer, purpose string, kind byte, token []byte) (fields []byte, ok bool, err error) {
	n := len(token) - sumBytes
	if n < 2 || len(token) > maxToken || token[0] != tokenVersion || token[1] != kind {
		return nil, false, nil
	}
	if binary.LittleEndian.Uint32(token[n:]) != crc32.Checksum(token[:n], castagnoli) {
		return nil, false, nil
	}
	if mac != nil {
		if n -= macBytes; n < 2 {
			return nil, false, nil
		}
		m, err := mac(ctx, purpose, token[:n])
		if err != nil {
			return nil, false, err
		}
		if !hmac.Equal(m[:macBytes], token[n:n+macBytes]) {
			return nil, false, nil
		}
	}
	return token[2:n], true, nil
}

// A reader takes the fields of a token apart.
type reader struct{ varint.Decoder }

func (r *reader) text() string {
	b := r.Bytes()
	if !utf8.Valid(b) {
		r.Fail()
	}
	return string(b)
}

func (p *prepared) encode() ([]byte, error) {
	b := []byte{tokenVersion, kindPrepared}
	b = binary.AppendUvarint(b, p.semantics)
	b = binary.AppendUvarint(b, uint64(p.expires))
	b = appendString(b, p.instance)
	b = appendString(b, p.text)
	b = appendTypes(b, p.params)
	b = appendString(b, p.metadata)
	b = binary.AppendUvarint(b, uint64(len(p.deps)))
	for _, d := range p.deps {
		b = append(b, byte(d.kind))
		b = appendString(b, d.name)
		b = appendString(b, d.incarnation)
		b = appendString(b, d.version)
	}
	if len(b) > maxToken-macBytes-sumBytes {
		return nil, fault.InvalidField("query", "Error in field 'query' : The statement is too long to be prepared")
	}
	return b, nil
}

// appendTypes appends the names and types of parameters, in order.
func appendTypes(b []byte, params map[string]*types.Type) []byte {
	b = binary.AppendUvarint(b, uint64(len(params)))
	for _, name := range slices.Sorted(maps.Keys(params)) {
		b = appendString(b, name)
		t := params[name]
		array := byte(0)
		if t.Kind == types.Array {
			array, t = 0x80, t.Elem
		}
		b = append(b, byte(t.Kind)|array)
	}
	return b
}

var scalars = map[types.Kind]*types.Type{
	types.Bool: types.BoolType, types.Int64: types.Int64Type, types.Float32: types.Float32Type, types.Float64: types.Float64Type,
	types.String: types.StringType, types.Bytes: types.BytesType, types.Date: types.DateType, types.Timestamp: types.TimestampType,
}

func (r *reader) types() map[string]*types.Type {
	n := r.Count()
	out := make(map[string]*types.Type, min(n, maxParams))
	for range n {
		name, kind := r.text(), r.Byte()
		t := scalars[types.Kind(kind&0x7f)]
		if r.Bad() || t == nil || len(out) == maxParams {
			r.Fail()
			return nil
		}
		if kind&0x80 != 0 {
			t = types.ArrayOf(t)
		}
		out[name] = t
	}
	return out
}

// decodePrepared reads the fields of a token.
func decodePrepared(fields []byte) (*prepared, bool) {
	r := reader{varint.Of(fields)}
	p := &prepared{semantics: r.Uvarint(), expires: int64(r.Uvarint()), instance: r.text(), text: r.text(), params: r.types(), metadata: r.Bytes()}
	for range r.Count() {
		if r.Bad() {
			break
		}
		p.deps = append(p.deps, dependency{kind: dependencyKind(r.Byte()), name: r.text(), incarnation: r.text(), version: r.text()})
	}
	return p, !r.Bad() && r.Len() == 0
}

// columnsOf returns the encoded description of columns.
func columnsOf(columns []algebra.OutputColumn) (*bigtablepb.ResultSetMetadata, []byte, error) {
	m := metadataOf(columns)
	b, err := deterministic.Marshal(m)
	return m, b, err
}

// A stage is how far the client of an execution has got.
type stage byte

const (
	stagePosition stage = iota + 1 // behind a position of the plan
	stageSpool                     // behind an offset of a spool
	stageEnd                       // everything was sent
)

// A resume is what a resume token says.
type resume struct {
	execution hash // of what was asked for
	now       time.Time
	stage     stage
	position  []byte // stagePosition
	spool     []byte // stageSpool: its id
	offset    int64
}

// encode returns the token without its end.
func (t *resume) encode(b []byte) []byte {
	b = append(b, tokenVersion, kindResume)
	b = append(b, t.execution[:]...)
	b = binary.AppendVarint(b, t.now.UnixMicro())
	b = append(b, byte(t.stage))
	switch t.stage {
	case stagePosition:
		b = appendString(b, t.position)
	case stageSpool:
		b = appendString(b, t.spool)
		b = binary.AppendUvarint(b, uint64(t.offset))
	}
	return b
}

func decodeResume(fields []byte) (*resume, bool) {
	t := new(resume)
	if len(fields) < len(t.execution)+2 {
		return nil, false
	}
	r := varint.Of(fields[copy(t.execution[:], fields):])
	micros := r.Varint()
	t.now, t.stage = time.UnixMicro(micros), stage(r.Byte())
	switch t.stage {
	case stagePosition:
		t.position = r.Bytes()
	case stageSpool:
		t.spool = r.Bytes()
		t.offset = int64(r.Uvarint())
	case stageEnd:
	default:
		return nil, false
	}
	return t, !r.Bad() && r.Len() == 0 && micros >= minMicros && micros <= maxMicros && t.offset >= 0
}

// executionOf identifies what an execution is of. A resume token is good for the
// same principal, statement and parameters only.
func executionOf(principal string, statement hash, p algebra.Params, declared map[string]*types.Type) hash {
	b := make([]byte, 0, 256)
	b = append(b, statement[:]...)
	b = appendString(b, principal)
	b = appendValues(b, p.Values, func(name string) *types.Type { return declared[name] })
	b = appendValues(b, p.View, func(string) *types.Type { return types.StringType })
	return sha256.Sum256(b)
}

func appendValues(b []byte, values map[string]types.Value, typeOf func(string) *types.Type) []byte {
	b = binary.AppendUvarint(b, uint64(len(values)))
	if len(values) == 0 {
		return b
	}
	if len(values) == 1 { // as most have
		for name, v := range values {
			return appendNamed(b, name, typeOf(name), v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		b = appendNamed(b, name, typeOf(name), values[name])
	}
	return b
}

func appendNamed(b []byte, name string, t *types.Type, v types.Value) []byte {
	b = append(appendString(b, name), byte(t.Kind))
	return types.AppendKey(b, t, v)
}
