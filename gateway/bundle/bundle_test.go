package bundle

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// set encodes files given as text of google.protobuf.FileDescriptorProto.
func set(t testing.TB, files ...string) []byte {
	t.Helper()
	s := new(descriptorpb.FileDescriptorSet)
	for _, text := range files {
		f := new(descriptorpb.FileDescriptorProto)
		if err := prototext.Unmarshal([]byte(text), f); err != nil {
			t.Fatal(err)
		}
		s.File = append(s.File, f)
	}
	b, err := proto.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const library = `name: "a.proto" package: "p" syntax: "proto2"
	message_type {
		name: "Book"
		field { name: "title" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
		field { name: "author" number: 2 type: TYPE_MESSAGE type_name: ".p.Book.Author" label: LABEL_REPEATED }
		field { name: "kind" number: 3 type: TYPE_ENUM type_name: ".p.Kind" label: LABEL_OPTIONAL }
		field { name: "isbn" number: 4 type: TYPE_INT64 label: LABEL_OPTIONAL oneof_index: 0 }
		field { name: "pages" number: 5 type: TYPE_MESSAGE type_name: ".p.Book.PagesEntry" label: LABEL_REPEATED }
		oneof_decl { name: "id" }
		extension_range { start: 100 end: 200 }
		nested_type { name: "Author" field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL } }
		nested_type { name: "PagesEntry" options { map_entry: true }
			field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL } field { name: "value" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL } }
	}
	enum_type { name: "Kind" value { name: "NOVEL" number: 0 } value { name: "POEM" number: 1 } }
	extension { name: "price" number: 100 type: TYPE_INT32 label: LABEL_OPTIONAL extendee: ".p.Book" }`

func TestProtoBreaks(t *testing.T) {
	for _, c := range []struct{ name, from, to, breaks string }{
		{"nothing", "", "", ""},
		{"new field", `field { name: "title"`, `field { name: "year" number: 9 type: TYPE_INT32 label: LABEL_OPTIONAL } field { name: "title"`, ""},
		{"new required field", `field { name: "title"`, `field { name: "year" number: 9 type: TYPE_INT32 label: LABEL_REQUIRED } field { name: "title"`, "p.Book.year is new and required"},
		{"new value", `value { name: "POEM"`, `value { name: "ESSAY" number: 2 } value { name: "POEM"`, ""},
		{"field gone", `field { name: "title" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }`, ``, "p.Book.title is gone"},
		{"field renamed", `"title"`, `"heading"`, "p.Book.title is now called heading"},
		{"field renumbered", `"title" number: 1`, `"title" number: 7`, "p.Book.title is gone"},
		{"type", `"title" number: 1 type: TYPE_STRING`, `"title" number: 1 type: TYPE_BYTES`, "p.Book.title is now a bytes, not a string"},
		{"label", `"title" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL`, `"title" number: 1 type: TYPE_STRING label: LABEL_REPEATED`, "p.Book.title is now repeated, not optional"},
		{"oneof", ` oneof_index: 0 }`, ` oneof_index: 0 } field { name: "x" number: 9 type: TYPE_INT64 label: LABEL_OPTIONAL oneof_index: 0 }`, ""},
		{"out of a oneof", ` oneof_index: 0 }`, ` } field { name: "x" number: 9 type: TYPE_INT64 label: LABEL_OPTIONAL oneof_index: 0 }`, "p.Book.isbn has moved into a oneof, or out of one"},
		{"message", `type_name: ".p.Book.Author"`, `type_name: ".p.Book"`, "p.Book.author is now a p.Book, not a p.Book.Author"},
		{"nested field", `field { name: "name" number: 1 type: TYPE_STRING`, `field { name: "name" number: 1 type: TYPE_BYTES`, "p.Book.Author.name is now a bytes, not a string"},
		{"map value", `name: "value" number: 2 type: TYPE_INT32`, `name: "value" number: 2 type: TYPE_INT64`, "p.Book.PagesEntry.value is now a int64, not a int32"},
		{"value gone", `value { name: "POEM" number: 1 }`, ``, "p.POEM is gone"},
		{"value renumbered", `"POEM" number: 1`, `"POEM" number: 4`, "p.POEM is now 4, not 1"},
		{"extension", `"price" number: 100`, `"price" number: 101`, "p.price extends something else"},
		{"extension type", `"price" number: 100 type: TYPE_INT32`, `"price" number: 100 type: TYPE_STRING`, "p.price is now a string, not a int32"},
		{"package", `package: "p"`, `package: "q"`, "p.Book is gone; p.Kind is gone; p.price is gone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			after := strings.Replace(library, c.from, c.to, 1)
			if c.name != "nothing" && after == library {
				t.Fatal("nothing to replace")
			}
			if c.name == "package" {
				after = strings.ReplaceAll(after, `".p.`, `".q.`)
			}
			old, err := ParseProto(set(t, library))
			if err != nil {
				t.Fatal(err)
			}
			now, err := ParseProto(set(t, after))
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(old.Breaks(now), "; "); got != c.breaks {
				t.Errorf("got  %s\nwant %s", got, c.breaks)
			}
		})
	}
}

func TestParseProtoErrors(t *testing.T) {
	for _, c := range []struct {
		b    []byte
		text string
	}{
		{nil, "has no file"},
		{[]byte("x"), "not a google.protobuf.FileDescriptorSet"},
		{set(t, `name: "a.proto" dependency: "b.proto"`), "could not resolve import"},
		{set(t, `name: "a.proto"`, `name: "a.proto"`), "not a valid google.protobuf.FileDescriptorSet"},
		{set(t, strings.Replace(library, `".p.Book.Author"`, `".p.Nobody"`, 1)), "p.Nobody"},
	} {
		_, err := ParseProto(c.b)
		if err == nil || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "proto: ") || strings.Contains(err.Error(), "\u00a0") {
			t.Errorf("got %v, want … %s …", err, c.text)
		}
	}
	// Imports may come in any order.
	b, err := proto.Marshal(&descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{
		{Name: proto.String("x.proto"), Dependency: []string{"google/protobuf/timestamp.proto"}},
		protodesc.ToFileDescriptorProto(timestamppb.File_google_protobuf_timestamp_proto),
	}})
	if err == nil {
		_, err = ParseProto(b)
	}
	if err != nil {
		t.Error(err)
	}
}

// The client's own bundles, the second of which is made to follow the first.
func TestClientsBundles(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "cloud.google.com/go/bigtable").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	read := func(name string) *Proto {
		b, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		p, err := ParseProto(b)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first, second := read("proto_schema_bundle.pb"), read("updated_proto_schema_bundle.pb")
	if b := first.Breaks(second); b != nil {
		t.Error(b)
	}
	if b := second.Breaks(first); len(b) != 1 || !strings.HasSuffix(b[0], "last_name is gone") {
		t.Error(b)
	}
}

func TestParseAvroErrors(t *testing.T) {
	record := func(fields string) string { return `{"type":"record","name":"R","fields":[` + fields + `]}` }
	valid := []string{
		`"string"`, `{"type":"string","logicalType":"uuid"}`, `["null","string",{"type":"array","items":"int"}]`, `[]`,
		`{"type":"map","values":["null","long"]}`, `{"type":"enum","name":"E","symbols":["A","B"],"default":"A"}`, `{"type":"fixed","name":"F","size":16}`,
		record(``), record(`{"name":"next","type":["null","R"],"default":null}`), record(`{"name":"a","type":"int","default":-2147483648,"order":"ignore","aliases":["b"]}`),
		record(`{"name":"a","type":"double","default":1}`), record(`{"name":"a","type":"bytes","default":"\u00ff"}`),
		record(`{"name":"a","type":{"type":"fixed","name":"F","size":2},"default":"\u00ff\u0000"}`),
		record(`{"name":"a","type":{"type":"map","values":"int"},"default":{"x":1}}`), record(`{"name":"a","type":{"type":"array","items":"int"},"default":[1,2]}`),
		record(`{"name":"a","type":{"type":"record","name":"S","fields":[{"name":"x","type":"int"},{"name":"y","type":"int","default":1}]},"default":{"x":1}}`),
		record(`{"name":"a","type":{"type":"enum","name":"E","symbols":["A"]},"default":"A"}`), record(`{"name":"a","type":"boolean","default":false}`),
		`{"type":"record","name":"x.R","fields":[{"name":"a","type":{"type":"fixed","name":"F","size":1}},{"name":"b","type":"F"},{"name":"c","type":"x.F"}]}`,
		`{"type":"record","name":"R","namespace":"x.y","fields":[{"name":"c","type":["null","x.y.R"]}]}`, `{"type":"error","name":"R","fields":[]}`,
		`{"type":{"type":"string"}}`,
	}
	for _, s := range valid {
		a, err := ParseAvro([]string{s})
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		if b := a.Breaks(a); b != nil {
			t.Errorf("%s does not read itself: %v", s, b)
		}
	}
	for _, c := range []struct{ schema, text string }{
		{``, "not JSON"}, {`{`, "not JSON"}, {`"int" "int"`, "more than one JSON value"}, {`1`, "not 1"}, {`{}`, "has no type"}, {`"strong"`, `type "strong" is not defined`},
		{`["int","int"]`, `a union has "int" twice`}, {`["int",["null"]]`, "directly in another"},
		{`{"type":"array"}`, "has no items"}, {`{"type":"map"}`, "has no values"}, {`{"type":"map","values":"x"}`, "not defined"},
		{`{"type":"record","name":"R"}`, "no fields"}, {`{"type":"record","fields":[]}`, `"" is no name`}, {`{"type":"record","name":"a.1b","fields":[]}`, "is no name"},
		{`{"type":"record","name":"int","fields":[]}`, "cannot be defined"}, {`{"type":"record","name":"R","aliases":"x","fields":[]}`, "not a list"},
		{record(`1`), "is no name"}, {record(`{"name":"a"}`), "has no type"}, {record(`{"name":"a","type":"int"},{"name":"a","type":"int"}`), "there twice"},
		{record(`{"name":"a","type":"nope"}`), `record "R": field "a": type "nope" is not defined`}, {record(`{"name":"a","type":"int","order":"up"}`), "order up"},
		{record(`{"name":"a","type":"int","default":2147483648}`), "default is no int"}, {record(`{"name":"a","type":"int","default":1.5}`), "default is no int"},
		{record(`{"name":"a","type":"int","default":null}`), "default is no int"}, {record(`{"name":"a","type":"string","default":1}`), "default is no string"},
		{record(`{"name":"a","type":"bytes","default":"\u0100"}`), "default is no bytes"}, {record(`{"name":"a","type":"boolean","default":"true"}`), "default is no boolean"},
		{record(`{"name":"a","type":["null","int"],"default":"x"}`), "default is no union"}, {record(`{"name":"a","type":"null","default":0}`), "default is no null"},
		{record(`{"name":"a","type":{"type":"fixed","name":"F","size":2},"default":"a"}`), "default is no F"},
		{record(`{"name":"a","type":{"type":"array","items":"int"},"default":["a"]}`), "default is no array"},
		{record(`{"name":"a","type":{"type":"map","values":"int"},"default":{"x":"a"}}`), "default is no map"},
		{record(`{"name":"a","type":{"type":"record","name":"S","fields":[{"name":"x","type":"int"}]},"default":{}}`), "default is no S"},
		{`["null",{"type":"fixed","name":"F","size":1},{"type":"fixed","name":"F","size":1}]`, "defined twice"},
		{`{"type":"fixed","name":"F"}`, "size"}, {`{"type":"fixed","name":"F","size":-1}`, "size"}, {`{"type":"fixed","name":"F","size":1.5}`, "size"},
		{`{"type":"enum","name":"E"}`, "no symbols"}, {`{"type":"enum","name":"E","symbols":["A","A"]}`, "there twice"}, {`{"type":"enum","name":"E","symbols":[1]}`, "1 is no name"},
		{`{"type":"enum","name":"E","symbols":["A"],"default":"B"}`, "no symbol"},
	} {
		_, err := ParseAvro([]string{`"int"`, c.schema})
		if err == nil || !strings.Contains(err.Error(), c.text) || !strings.HasPrefix(err.Error(), "Error in element #1") {
			t.Errorf("%s: got %v, want … %s …", c.schema, err, c.text)
		}
	}
	if _, err := ParseAvro(nil); err == nil {
		t.Error("no schema is a bundle")
	}
}

// A default that nested unions offer in ever more ways is told to be too much, in time.
func TestAvroDefaultsAreBounded(t *testing.T) {
	schema := func(levels int, last string) []string {
		return []string{`{"type":"record","name":"W","fields":[{"name":"d","type":["null",
			{"type":"record","name":"A","fields":[{"name":"x","type":["null","A",
				{"type":"record","name":"B","fields":[{"name":"x","type":["null","A","B"]}]}]}]},"B"],
			"default":` + strings.Repeat(`{"x":`, levels) + last + strings.Repeat(`}`, levels) + `}]}`}
	}
	for _, c := range []struct {
		levels     int
		last, text string
	}{
		{64, "null", ""}, {10, "1", "default is no union"}, {64, "1", "default is too complex"},
	} {
		done := make(chan error)
		go func() {
			_, err := ParseAvro(schema(c.levels, c.last))
			done <- err
		}()
		select {
		case err := <-done:
			if text := fmt.Sprint(err); (err == nil) != (c.text == "") || !strings.Contains(text, c.text) {
				t.Errorf("%d levels around %s: got %v, want … %s …", c.levels, c.last, err, c.text)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%d levels around %s: no answer", c.levels, c.last)
		}
	}
	// One default of many elements is not complex, however long.
	list := `{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"array","items":["null","bytes"]},"default":[` + strings.Repeat(`"0123456789",`, 99_999) + `null]}]}`
	if _, err := ParseAvro([]string{list}); err != nil {
		t.Error(err)
	}
}

func TestAvroBreaks(t *testing.T) {
	record := func(fields string) string { return `{"type":"record","name":"R","fields":[` + fields + `]}` }
	in := func(typ string) string { return record(`{"name":"a","type":` + typ + `}`) }
	enum := func(symbols, more string) string {
		return `{"type":"enum","name":"E","symbols":[` + symbols + `]` + more + `}`
	}
	list := func(name, typ string) string {
		return `{"type":"record","name":"` + name + `","fields":[{"name":"v","type":` + typ + `},{"name":"next","type":["null","` + name + `"]}]}`
	}
	for _, c := range []struct {
		name, old, now string
		ok             bool
	}{
		{"same", in(`"int"`), in(`"int"`), true},
		{"promotion", in(`"int"`), in(`"double"`), true},
		{"demotion", in(`"long"`), in(`"int"`), false},
		{"string to bytes", in(`"string"`), in(`"bytes"`), true},
		{"other", in(`"string"`), in(`"int"`), false},
		{"into a union", in(`"int"`), in(`["null","long"]`), true},
		{"not into a union", in(`"string"`), in(`["null","long"]`), false},
		{"out of a union", in(`["int"]`), in(`"long"`), true},
		{"not out of a union", in(`["null","int"]`), in(`"int"`), false},
		{"more branches", in(`["null","int"]`), in(`["string","long","null"]`), true},
		{"fewer branches", in(`["null","int"]`), in(`["null"]`), false},
		{"field gone", record(`{"name":"a","type":"int"},{"name":"b","type":"int"}`), in(`"int"`), true},
		{"new field", in(`"int"`), record(`{"name":"a","type":"int"},{"name":"b","type":"int"}`), false},
		{"new field with default", in(`"int"`), record(`{"name":"a","type":"int"},{"name":"b","type":"int","default":1}`), true},
		{"field renamed", in(`"int"`), record(`{"name":"b","type":"int","aliases":["x","a"]}`), true},
		{"field of an alias", in(`"int"`), record(`{"name":"b","type":"string","aliases":["a"],"default":""}`), false},
		{"symbol", in(enum(`"A"`, "")), in(enum(`"B","A"`, "")), true},
		{"symbol gone", in(enum(`"A","B"`, "")), in(enum(`"A"`, "")), false},
		{"symbol gone to the default", in(enum(`"A","B"`, "")), in(enum(`"A"`, `,"default":"A"`)), true},
		{"fixed", in(`{"type":"fixed","name":"F","size":2}`), in(`{"type":"fixed","name":"F","size":3}`), false},
		{"fixed elsewhere", in(`{"type":"fixed","name":"x.F","size":2}`), in(`{"type":"fixed","name":"y.F","size":2}`), true},
		{"fixed renamed", in(`{"type":"fixed","name":"F","size":2}`), in(`{"type":"fixed","name":"G","size":2}`), false},
		{"fixed with alias", in(`{"type":"fixed","name":"F","size":2}`), in(`{"type":"fixed","name":"G","size":2,"aliases":["F"]}`), true},
		{"array", in(`{"type":"array","items":"int"}`), in(`{"type":"array","items":"long"}`), true},
		{"map", in(`{"type":"map","values":"long"}`), in(`{"type":"map","values":"int"}`), false},
		{"array to map", in(`{"type":"array","items":"int"}`), in(`{"type":"map","values":"int"}`), false},
		{"cyclic", list("L", `"int"`), list("L", `"long"`), true},
		{"cyclic not", list("L", `"long"`), list("L", `"int"`), false},
		{"gone", in(`"int"`), list("L", `"int"`), false},
		{"unnamed", `["null","int"]`, `["null","long"]`, true},
		{"unnamed not", `["null","int"]`, `["null"]`, false},
		// A branch of a union fails only by what it refers to: what was assumed on
		// the way must not stay.
		{"cyclic union",
			record(`{"name":"a","type":["null","R"]},{"name":"b","type":` + list("L", `"long"`) + `}`),
			record(`{"name":"a","type":["null","R"]},{"name":"b","type":` + list("L", `"int"`) + `}`), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var as []*Avro
			for _, s := range []string{c.old, c.now} {
				a, err := ParseAvro([]string{`{"type":"enum","name":"Other","symbols":[]}`, s})
				if err != nil {
					t.Fatal(err)
				}
				as = append(as, a)
			}
			if b := as[0].Breaks(as[1]); (len(b) == 0) != c.ok {
				t.Errorf("breaks %q", b)
			}
		})
	}
}

// Unions of unions of records are told to be too much, in time.
func TestAvroBreaksIsBounded(t *testing.T) {
	many := func(typ string) string {
		var b strings.Builder
		b.WriteString(`[`)
		for i := range 3000 {
			fmt.Fprintf(&b, `{"type":"record","name":"n%d.R","fields":[{"name":"a","type":"%s"}]},`, i, typ)
		}
		return b.String() + `"null"]`
	}
	in := func(typ string) *Avro {
		a, err := ParseAvro([]string{`{"type":"record","name":"Top","fields":[{"name":"u","type":` + many(typ) + `}]}`})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if b := in("long").Breaks(in("int")); len(b) != 1 {
		t.Error(b)
	}
	// The first branch of each fits nothing but the last of the other.
	if b := in("int").Breaks(in("long")); b != nil {
		t.Error(b)
	}
}

func FuzzProto(f *testing.F) {
	f.Add(set(f, library), set(f, library))
	f.Add(set(f, `name: "a" syntax: "proto3" message_type { name: "M" field { name: "x" number: 1 type: TYPE_INT32 proto3_optional: true oneof_index: 0 } oneof_decl { name: "_x" } }`), []byte{})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		p, err := ParseProto(a)
		if err != nil {
			return
		}
		if breaks := p.Breaks(p); breaks != nil {
			t.Fatal("breaks itself: ", breaks)
		}
		if q, err := ParseProto(b); err == nil {
			p.Breaks(q)
		}
	})
}

func FuzzAvro(f *testing.F) {
	f.Add(`{"type":"record","name":"R","fields":[{"name":"a","type":["null","R",{"type":"map","values":"int"}],"default":null}]}`, `["null","string"]`)
	f.Add(`{"type":"enum","name":"x.E","symbols":["A"],"default":"A"}`, `{"type":"fixed","name":"F","size":3}`)
	f.Fuzz(func(t *testing.T, a, b string) {
		p, err := ParseAvro([]string{a})
		if err != nil {
			return
		}
		if breaks := p.Breaks(p); breaks != nil {
			t.Fatal("breaks itself: ", breaks)
		}
		if q, err := ParseAvro([]string{b}); err == nil {
			p.Breaks(q)
		}
	})
}
