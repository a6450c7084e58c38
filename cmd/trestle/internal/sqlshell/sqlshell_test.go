package sqlshell

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/compat/sqlclient"
	"github.com/trestledb/trestle/conformance/streamcheck"
	"github.com/trestledb/trestle/conformance/trestletest"
)

const instance = "projects/p/instances/i"

// newShell returns a shell on a server with a table, and what it writes.
func newShell(t *testing.T) (s *Shell, out, errs *bytes.Buffer) {
	t.Helper()
	srv, err := trestletest.NewServer("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Close)
	check := streamcheck.New()
	conn, err := grpc.NewClient(srv.Addr, append(check.Options(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		for _, v := range check.Violations() {
			t.Error(v)
		}
	})
	ctx := t.Context()
	if _, err := adminpb.NewBigtableTableAdminClient(conn).CreateTable(ctx, &adminpb.CreateTableRequest{Parent: instance, TableId: "people",
		Table: &adminpb.Table{ColumnFamilies: map[string]*adminpb.ColumnFamily{"f": {}}}}); err != nil {
		t.Fatal(err)
	}
	c, err := bigtable.NewClientWithConfig(ctx, "p", "i", bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, option.WithGRPCConn(conn))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Ann", "Bob"} {
		m := bigtable.NewMutation()
		m.Set("f", "name", 1000, []byte(name))
		m.Set("f", "n", 1000, []byte{0, 0xff, '"'})
		if err := c.Open("people").Apply(ctx, strings.ToLower(name), m); err != nil {
			t.Fatal(err)
		}
	}
	found, err := FindInstance(ctx, conn)
	if err != nil || found != instance {
		t.Fatal(found, err)
	}
	out, errs = new(bytes.Buffer), new(bytes.Buffer)
	return &Shell{Client: &Client{Client: sqlclient.Client{Conn: conn, Instance: found}, Admin: conn}, Out: out, Err: errs, Format: "table", Params: Params{}}, out, errs
}

func TestShell(t *testing.T) {
	s, out, errs := newShell(t)
	for _, tc := range []struct{ in, out string }{
		{"SELECT _key, f['name'] AS name, LENGTH(f['n']) AS n\nFROM people; -- all of them;\n", " _key | name | n\n------+------+---\n ann  | Ann  | 3\n bob  | Bob  | 3\n(2 rows)\n"},
		{"SELECT 'a;b' AS x; SELECT \"it's\" AS y", " x\n-----\n a;b\n(1 row)\n y\n------\n it's\n(1 row)\n"},
		{`\format csv` + "\nSELECT _key, f, NULL AS nothing FROM people WHERE _key = 'ann'", "_key,f,nothing\nann,\"{\"\"n\"\": \"\"\\x00\\xff\\\"\"\"\", \"\"name\"\": \"\"Ann\"\"}\",\n"},
		{`\format json` + "\nSELECT _key, f, 1, 2 AS `_key` FROM people WHERE _key = 'ann'", `{"_key":"ann","f":{"n":{"base64":"AP8i"},"name":"Ann"},"f0_":1,"column_4":2}` + "\n"},
		{`\format table` + "\n\\set k:BYTES=bob\n\\set unused=1\nSELECT f['name'] AS name FROM people WHERE _key = @k;\n\\set\n\\unset k\n\\set", " name\n------\n Bob\n(1 row)\nk:BYTES=bob\nunused=1\nunused=1\n"},
		{`\d`, "people\n"},
		{`\d people`, "_key  BYTES\nf     MAP<BYTES, BYTES>\n"},
		{"", ""},
		{";;\n;", ""},
		{`\q` + "\nSELECT 1;", ""},
		{"SELECT '\\n' AS a, 1 AS b", " a  | b\n----+---\n \\n | 1\n(1 row)\n"},
	} {
		out.Reset()
		if err := s.Run(t.Context(), strings.NewReader(tc.in)); err != nil || out.String() != tc.out {
			t.Errorf("%q: %q, %v, want %q", tc.in, out, err, tc.out)
		}
	}
	out.Reset()
	if err := s.Run(t.Context(), strings.NewReader("EXPLAIN ANALYZE SELECT COUNT(*) FROM people;")); err != nil || !strings.Contains(out.String(), "└ ") || !strings.Contains(out.String(), "WARNING: full table scan") {
		t.Error(out, err)
	}
	for in, want := range map[string]string{
		"SELECT x;":                 "InvalidArgument: Unrecognized name: x [at 1:8]",
		`\nothing`:                  "is no command",
		`\format x`:                 "is no format",
		`\d nobody`:                 "Table not found: nobody",
		`\set x:y=`:                 "is no type of a parameter",
		"SHOW TABLES":               "\nHint: \\d lists tables and views.",
		"SELECT f.name FROM people": "\nHint: a column of a family is written family['column'].",
		"SELECT name FROM people":   "Unrecognized name: name [at 1:8]\nHint: a column of a family is written family['column'].",
		"SELECT _ky FROM people":    "Unrecognized name: _ky; Did you mean _key? [at 1:8]",
		"SELECT @city":              "\nHint: --param NAME:TYPE=TEXT gives parameters",
		"\\set c=x\nSELECT _key FROM people WHERE f['name'] = @c": "\nHint: a parameter is of BYTES if it is given as NAME:BYTES=TEXT.",
		"DELETE FROM people":       "\nHint: WHERE TRUE means all rows.",
		"CREATE TABLE t (a INT64)": "\nHint: tables are made",
	} {
		if err := s.Run(t.Context(), strings.NewReader(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", in, err)
		}
	}
	// A person is told, and goes on.
	s.Prompt, s.Timing = true, true
	out.Reset()
	errs.Reset()
	if err := s.Run(t.Context(), strings.NewReader("SELECT x;\nSELECT\n1 AS a;\n")); err != nil || !strings.Contains(out.String(), "(1 row)") ||
		!strings.Contains(errs.String(), "sql> InvalidArgument") || !strings.Contains(errs.String(), "  -> 1 row in ") {
		t.Errorf("%s%s%v", out, errs, err)
	}
}

// TestForget leaves literals that were not ended.
func TestForget(t *testing.T) {
	s, out, errs := newShell(t)
	s.Prompt = true
	if err := s.Run(t.Context(), strings.NewReader("SELECT 'its;\n\\r\nSELECT 1 AS a;\nSELECT 'its;\n\\q\nSELECT 2 AS b;\n")); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != " a\n---\n 1\n(1 row)\n" {
		t.Errorf("%s%s", got, errs)
	}
}

// TestInterrupt ends what runs by SIGINT, and runs the next statement.
func TestInterrupt(t *testing.T) {
	// SIGINT is not to end the test where nothing runs.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt)
	defer signal.Stop(signals)
	const (
		numbers = "UNNEST(GENERATE_ARRAY(1, 16000))"
		endless = "SELECT COUNT(*) FROM " + numbers + " a, " + numbers + " b, " + numbers + " c WHERE a + b + c < 0"
	)
	for line, want := range map[string]string{
		endless + ";": "sql> interrupted\n",
		"DELETE FROM people WHERE (" + endless + ") = 0;":                 "sql> interrupted; the statement may have written all its rows, or some\n",
		"EXPLAIN ANALYZE DELETE FROM people WHERE (" + endless + ") = 0;": "sql> interrupted; the statement may have written all its rows, or some\n",
		`\d`: "sql> interrupted\n",
	} {
		s, out, errs := newShell(t)
		s.Prompt = true
		s.Client.Admin = silent{}
		in, typed := io.Pipe()
		go func() {
			fmt.Fprintln(typed, line)
			next := make(chan struct{})
			go func() {
				defer close(next)
				fmt.Fprintln(typed) // is read once the statement has ended
			}()
			for waiting := true; waiting; {
				select {
				case <-next:
					waiting = false
				case <-time.After(20 * time.Millisecond):
					_ = syscall.Kill(os.Getpid(), syscall.SIGINT) // a process may send itself signals
					<-signals                                     // it is not to come later, and end what is next
				}
			}
			fmt.Fprintln(typed, "SELECT 1 AS a;")
			_ = typed.Close() // it cannot fail
		}()
		if err := s.Run(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		if out.String() != " a\n---\n 1\n(1 row)\n" || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: %s%s", line, out, errs)
		}
	}
}

// silent is a connection to a server that does not answer.
type silent struct{ grpc.ClientConnInterface }

func (silent) Invoke(ctx context.Context, _ string, _, _ any, _ ...grpc.CallOption) error {
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-time.After(time.Minute):
		return errors.New("the call went on")
	}
}

// TestUntold tells that a statement may have written rows when its time was over, or its
// server away, and of no other.
func TestUntold(t *testing.T) {
	s, _, _ := newShell(t)
	over, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	const words = "; the statement may have written all its rows, or some"
	for text, want := range map[string]bool{
		"SELECT 1": false, "EXPLAIN DELETE FROM people WHERE TRUE": false, "EXPLAIN ANALYZE SELECT 1": false, "what a newer server knows": true,
		"/* x */ update people SET f['a'] = 'b' WHERE TRUE": true, "INSERT INTO people (_key, f['a']) VALUES ('x', 'y')": true,
	} {
		if err := s.Run(over, strings.NewReader(text)); err == nil || strings.HasSuffix(err.Error(), words) != want || !strings.HasPrefix(err.Error(), "DeadlineExceeded: ") {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := s.Run(t.Context(), strings.NewReader("DELETE FROM nobody WHERE TRUE")); err == nil || strings.Contains(err.Error(), words) {
		t.Error(err)
	}
}

// TestLostAnswer loses the first answer: a query is asked again, and what writes is not.
func TestLostAnswer(t *testing.T) {
	s, out, _ := newShell(t)
	conn := s.Client.Conn
	for _, query := range []string{"SELECT 1 AS a", "SELECT 1 AS rows_affected", "SELECT 'x' AS operator", "EXPLAIN SELECT 1", "EXPLAIN ANALYZE SELECT 1", "EXPLAIN DELETE FROM people WHERE TRUE"} {
		out.Reset()
		s.Client.Conn = &losing{ClientConnInterface: conn}
		if err := s.Run(t.Context(), strings.NewReader(query)); err != nil || out.Len() == 0 {
			t.Errorf("%s: %s%v", query, out, err)
		}
	}
	s.Client.Conn = &losing{ClientConnInterface: conn}
	err := s.Run(t.Context(), strings.NewReader("UPDATE people SET f['name'] = CONCAT(f['name'], b'!') WHERE _key = 'ann'"))
	if err == nil || err.Error() != "Unavailable: lost; the statement may have written all its rows, or some" {
		t.Error(err)
	}
	out.Reset()
	if err := s.Run(t.Context(), strings.NewReader("SELECT f['name'] AS name FROM people WHERE _key = 'ann'")); err != nil || !strings.Contains(out.String(), " Ann!\n") {
		t.Errorf("%s%v", out, err)
	}
}

// TestBrokenBehindToken breaks the stream behind the first message, which has a token: a
// statement that writes goes on there, and writes once.
func TestBrokenBehindToken(t *testing.T) {
	for statement, want := range map[string]string{
		"UPDATE people SET f['name'] = CONCAT(f['name'], b'!') WHERE _key = 'ann'":                 " rows_affected\n---------------\n             1\n(1 row)\n",
		"EXPLAIN ANALYZE UPDATE people SET f['name'] = CONCAT(f['name'], b'!') WHERE _key = 'ann'": "",
	} {
		s, out, _ := newShell(t)
		conn := &losing{ClientConnInterface: s.Client.Conn, behind: 1}
		s.Client.Conn = conn
		if err := s.Run(t.Context(), strings.NewReader(statement)); err != nil || !strings.HasPrefix(out.String(), want) || out.Len() == 0 || !conn.lost {
			t.Errorf("%s: %s%v", statement, out, err)
		}
		out.Reset()
		if err := s.Run(t.Context(), strings.NewReader("SELECT f['name'] AS name FROM people WHERE _key = 'ann'")); err != nil || !strings.Contains(out.String(), " Ann!\n") {
			t.Errorf("%s%v", out, err)
		}
	}
}

// losing is a connection that loses an answer of its first stream: that which is behind so many.
type losing struct {
	grpc.ClientConnInterface
	behind int
	lost   bool
}

func (l *losing) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	st, err := l.ClientConnInterface.NewStream(ctx, desc, method, opts...)
	if err != nil || l.lost {
		return st, err
	}
	l.lost = true
	return &lostStream{st, l.behind}, nil
}

type lostStream struct {
	grpc.ClientStream
	left int // answers that are not lost
}

func (s *lostStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if s.left--; s.left >= 0 {
		return err
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return status.Error(codes.Unavailable, "lost")
}

func TestSplit(t *testing.T) {
	for in, want := range map[string]string{
		"a;b":                       "a|b",
		"a;b;":                      "a|b|",
		"'a;b';c":                   "'a;b'|c",
		`'a\';b';c`:                 `'a\';b'|c`,
		"'''a';'b''';c":             "'''a';'b'''|c",
		"`a;b`;":                    "`a;b`|",
		"a -- ;\nb;":                "a -- ;\nb|",
		"a # ;\nb;":                 "a # ;\nb|",
		"a /* ; */ b;":              "a /* ; */ b|",
		"'open; a":                  "'open; a",
		"/* open ;":                 "/* open ;",
		`r'\'; b`:                   `r'\'; b`,
		";":                         "",
		"SELECT \"\"\"a\";b\"\"\";": "SELECT \"\"\"a\";b\"\"\"|",
	} {
		st, rest := Split(in)
		if got := strings.Join(append(st, rest), "|"); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func FuzzSplit(f *testing.F) {
	f.Add("SELECT 'a;b'; -- x\nSELECT 2;")
	f.Fuzz(func(t *testing.T, text string) {
		st, rest := Split(text)
		if len(strings.Join(st, ";"))+len(rest) > len(text) {
			t.Errorf("%q becomes %q and %q", text, st, rest)
		}
	})
}

func TestParams(t *testing.T) {
	for in, want := range map[string]string{
		"a=x=y":                            `type string_type:{} value string_value:"x=y"`,
		"a:int64=-5":                       `type int64_type:{} value int_value:-5`,
		"a:BOOL=TRUE":                      `type bool_type:{} value bool_value:true`,
		"a:FLOAT64=nan":                    `type float64_type:{} value float_value:nan`,
		`a:BYTES=x\x00\\`:                  `type bytes_type:{} value bytes_value:"x\x00\\"`,
		"a:DATE=2024-02-29":                `type date_type:{} value date_value:{year:2024 month:2 day:29}`,
		"a:TIMESTAMP=1970-01-01 00:00:01":  `type timestamp_type:{} value timestamp_value:{seconds:1}`,
		"a:TIMESTAMP=1970-01-01T00:00:01Z": `type timestamp_type:{} value timestamp_value:{seconds:1}`,
		"a:INT64":                          `type int64_type:{} value `,
		`a:ARRAY<INT64>=[1, null, 9007199254740993]`: `type array_type:{element_type:{int64_type:{}}} value array_value:{values:{int_value:1} values:{} values:{int_value:9007199254740993}}`,
	} {
		p := Params{}
		if err := p.Set(in); err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		got := strings.ReplaceAll("type "+p["a"].Type.String()+" value "+p["a"].Value.String(), "  ", " ")
		if got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
	for _, in := range []string{"", "a", "=x", "a:INT64=x", "a:STRUCT=1", "a:DATE=2023-02-29", `a:BYTES=\y`, `a:BYTES=\x0`, "a:ARRAY<INT64>=1", "a:BOOL=maybe"} {
		if err := (Params{}).Set(in); err == nil {
			t.Errorf("%q is a parameter", in)
		}
	}
}
