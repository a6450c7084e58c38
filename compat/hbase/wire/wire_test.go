package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
	"github.com/trestledb/trestle/engine/fault"
)

func TestCell(t *testing.T) {
	want := Cell{Row: []byte("row"), Family: []byte("f"), Qualifier: []byte{}, Timestamp: -2, Type: TypeDeleteColumn, Value: []byte("v")}
	b := AppendCell(nil, want.Row, string(want.Family), want.Qualifier, want.Timestamp, want.Type, want.Value)
	if len(b) != CellSize(3, 1, 0, 1) {
		t.Errorf("%d bytes", len(b))
	}
	plain := len(b)
	// The same with a tag of two bytes.
	b = append(b, b...)
	b = append(b, 0, 5, 0, 3, TagTTL, 7, 8)
	binary.BigEndian.PutUint32(b[plain:], uint32(plain-4+7))
	s := NewCells(b)
	var got Cell
	if err := s.Next(&got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := s.Next(&got); err != nil || s.Len() != 0 {
		t.Fatal(err)
	}
	if data, ok := Tag(got.Tags, TagTTL); !ok || !bytes.Equal(data, []byte{7, 8}) {
		t.Errorf("tags %x", got.Tags)
	}
	if _, ok := Tag(got.Tags, 1); ok {
		t.Error("a tag that is not there")
	}
	if err := s.Next(&got); !errors.Is(err, fault.Invalid) {
		t.Errorf("beyond the end: %v", err)
	}
}

func TestSnappy(t *testing.T) {
	c, ok := CompressorOf("org.apache.hadoop.io.compress.SnappyCodec")
	if !ok {
		t.Fatal("no Snappy")
	}
	for _, n := range []int{1, 100, snappyChunk, snappyChunk + 1, 3 << 20} {
		block := make([]byte, n)
		rand.New(rand.NewSource(1)).Read(block[:n/2])
		b := c.Compress([]byte("x"), block)[1:]
		if length, err := c.DecompressedLen(b, n); err != nil || length != n {
			t.Errorf("%d bytes: it will be %d, %v", n, length, err)
		}
		got, err := c.Decompress(b, n)
		if err != nil || !bytes.Equal(got, block) {
			t.Errorf("%d bytes: %v", n, err)
		}
		if _, err := c.Decompress(b, n-1); !errors.Is(err, fault.Invalid) {
			t.Errorf("%d bytes, and room for one less: %v", n, err)
		}
		if _, err := c.DecompressedLen(b, n-1); !errors.Is(err, fault.Exhausted) {
			t.Errorf("%d bytes, one too many: %v", n, err)
		}
	}
	if _, ok := CompressorOf("x"); ok {
		t.Error("a compressor of an unknown class")
	}
}

func TestFrames(t *testing.T) {
	h := &pb.RequestHeader{CallId: proto.Uint32(7), MethodName: proto.String("Get"), RequestParam: proto.Bool(true),
		CellBlockMeta: &pb.CellBlockMeta{Length: proto.Uint32(3)}}
	frame, _ := appendDelimited(nil, h)
	frame, _ = appendDelimited(frame, &pb.ClusterId{ClusterId: proto.String("c")})
	frame = append(frame, "abc"...)
	var r Request
	if err := ParseRequest(frame, &r); err != nil || r.Header.GetCallId() != 7 || len(r.Param) != 3 || string(r.Block) != "abc" {
		t.Errorf("%+v, %v", &r, err)
	}
	for n := range len(frame) - 1 {
		var r Request
		if err := ParseRequest(frame[:n], &r); !errors.Is(err, fault.Invalid) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	out, err := AppendResponse(nil, &pb.ResponseHeader{CallId: proto.Uint32(7)}, &pb.ClusterId{ClusterId: proto.String("c")}, len("xyz"))
	out = append(out, "xyz"...)
	if err != nil {
		t.Fatal(err)
	}
	n, err := ReadLength(bytes.NewReader(out))
	if err != nil || n != len(out)-4 {
		t.Fatalf("length %d, %v", n, err)
	}
	body, err := ReadBody(bytes.NewReader(out[4:]), n)
	if err != nil || !bytes.HasSuffix(body, []byte("xyz")) {
		t.Errorf("%q, %v", body, err)
	}
	if _, err := AppendResponse(nil, &pb.ResponseHeader{}, &pb.ClusterId{}, 0); err == nil {
		t.Error("a message without what it must have was encoded")
	}
	if _, err := ReadBody(bytes.NewReader(nil), 1<<30); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a claim of much: %v", err)
	}
	if _, err := ReadLength(bytes.NewReader([]byte{0xFF, 0, 0, 0})); !errors.Is(err, fault.Invalid) {
		t.Errorf("negative length: %v", err)
	}
}

// TestReadBodyGrows: what arrives in pieces is put together.
func TestReadBodyGrows(t *testing.T) {
	want := make([]byte, 5<<20+3)
	rand.New(rand.NewSource(1)).Read(want)
	got, err := ReadBody(io.MultiReader(bytes.NewReader(want[:3<<20]), bytes.NewReader(want[3<<20:])), len(want))
	if err != nil || !bytes.Equal(got, want) {
		t.Error(err)
	}
}

func TestExceptionOf(t *testing.T) {
	for k := fault.Invalid; k <= fault.Internal; k++ {
		if _, ok := classes[k]; !ok {
			t.Errorf("no class for %v", k)
		}
	}
	e := ExceptionOf(fmt.Errorf("x: %w", NoSuchFamily.New("f")))
	if e.Class != NoSuchFamily || e.Proto().GetStackTrace() != NoSuchFamily.Name+": f" || !e.Proto().GetDoNotRetry() {
		t.Errorf("%+v", e)
	}
	if e := ExceptionOf(io.EOF); e.Class != IO {
		t.Errorf("%+v", e)
	}
}

func FuzzCells(f *testing.F) {
	f.Add(AppendCell(AppendCell(nil, []byte("r"), "f", []byte("q"), 1, TypePut, []byte("v")), nil, "", nil, 0, 0, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := NewCells(b)
		var c Cell
		for s.Len() > 0 {
			before := s.Len()
			if err := s.Next(&c); err != nil {
				return
			}
			if s.Len() >= before {
				t.Fatal("no progress")
			}
			Tag(c.Tags, TagTTL)
			if c.Tags == nil {
				again := AppendCell(nil, c.Row, string(c.Family), c.Qualifier, c.Timestamp, c.Type, c.Value)
				if !bytes.Equal(again, b[len(b)-before:len(b)-before+len(again)]) {
					t.Fatalf("%x was read as %+v", b, c)
				}
			}
		}
	})
}

func FuzzDecompress(f *testing.F) {
	f.Add(snappyCodec{}.Compress(nil, bytes.Repeat([]byte("ab"), 100)))
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 1 << 16
		n, err := (snappyCodec{}).DecompressedLen(b, limit)
		if err != nil {
			return
		}
		if out, err := (snappyCodec{}).Decompress(b, n); n > limit || err == nil && len(out) != n {
			t.Fatalf("%d bytes, %d expected", len(out), n)
		}
	})
}

func FuzzParseRequest(f *testing.F) {
	frame, _ := appendDelimited(nil, &pb.RequestHeader{CallId: proto.Uint32(7), RequestParam: proto.Bool(true), CellBlockMeta: &pb.CellBlockMeta{Length: proto.Uint32(1)}})
	f.Add(append(frame, 1, 'p', 'b'))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Request
		if err := ParseRequest(b, &r); err == nil && len(r.Param)+len(r.Block) > len(b) {
			t.Fatal("more than there was")
		}
	})
}

func BenchmarkAppendCell(b *testing.B) {
	row, qual, value := []byte("user0000012345"), []byte("q"), make([]byte, 100)
	dst := make([]byte, 0, 256)
	b.ReportAllocs()
	for b.Loop() {
		dst = AppendCell(dst[:0], row, "cf", qual, 1, TypePut, value)
	}
}
