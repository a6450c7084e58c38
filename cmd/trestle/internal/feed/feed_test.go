package feed

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
	"github.com/trestledb/trestle/gateway"
)

const table = "projects/p/instances/i/tables/t"

// serve serves a table with a change stream.
func serve(t *testing.T) (*model.Backend, bigtablepb.BigtableClient) {
	t.Helper()
	m := model.New(model.Options{})
	_, err := m.CreateTable(t.Context(), &schema.Table{Name: table, Families: map[string]schema.Family{"f": {Name: "f"}},
		Stream: &schema.Stream{Life: 1, Retention: 24 * time.Hour, Since: time.Now()}}, [][]byte{[]byte("m")})
	if err != nil {
		t.Fatal(err)
	}
	s, err := gateway.New(m, gateway.Options{Emulator: true})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(schema.MaxRow)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return m, bigtablepb.NewBigtableClient(conn)
}

func write(t *testing.T, m *model.Backend, key string, value []byte) {
	t.Helper()
	err := m.MutateRow(context.Background(), table, &row.Entry{Key: []byte(key), Mutations: []row.Mutation{{Op: row.SetCell, Family: "f", Qualifier: []byte("q"), Timestamp: 1000, Value: value}}})
	if err != nil {
		t.Error(err)
	}
}

// lines decodes what a sink has.
func lines(t *testing.T, b []byte) (out []Line) {
	t.Helper()
	for l := range bytes.Lines(b) {
		var line Line
		if err := json.Unmarshal(l, &line); err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		out = append(out, line)
	}
	return out
}

// However often the program ends, and wherever, every record is in the file once.
func TestFileOnce(t *testing.T) {
	m, client := serve(t)
	begin := time.Now()
	path := filepath.Join(t.TempDir(), "out")
	stop := make(chan struct{})
	written := map[string][]string{}
	var wg sync.WaitGroup
	wg.Go(func() {
		rnd := rand.New(rand.NewPCG(1, 2))
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			key, value := fmt.Sprintf("%c", 'a'+rnd.IntN(26)), fmt.Sprint(i)
			write(t, m, key, []byte(value))
			written[key] = append(written[key], value)
			if i%40 == 0 {
				_ = m.Split(context.Background(), table, []byte{byte('a' + rnd.IntN(26))})
			}
			if i%60 == 0 {
				_ = m.Merge(context.Background(), table, []byte{byte('a' + rnd.IntN(26))}) // no tablets may meet there
			}
			time.Sleep(time.Millisecond)
		}
	})
	run := func(ctx context.Context, end time.Time) error {
		at, err := Load(path+".position", table)
		if err != nil {
			return err
		}
		s, err := OpenFile(path, path+".position", at)
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }()
		f := &Feed{Client: client, Table: table, Start: begin, End: end, Sink: s, Warn: func(err error) { t.Log(err) }}
		return f.Run(ctx, at)
	}
	for range 6 {
		ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
		if err := run(ctx, time.Time{}); err != nil {
			t.Fatal(err)
		}
		cancel()
		// As if it had ended between the lines and the position.
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString("half a li")
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	close(stop)
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := run(ctx, time.Now()); err != nil || ctx.Err() != nil {
		t.Fatal(err, ctx.Err())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, l := range lines(t, b) {
		got[string(l.Row)] = append(got[string(l.Row)], string(*l.Mutations[0].Value))
	}
	for key, want := range written {
		if strings.Join(got[key], " ") != strings.Join(want, " ") {
			t.Errorf("row %s:\ngot  %s\nwant %s", key, got[key], want)
		}
	}
	if t.Failed() {
		at, err := os.ReadFile(path + ".position")
		t.Logf("%s, %v", at, err)
	}
	if len(written) < 20 || len(got) != len(written) {
		t.Errorf("%d rows of %d", len(got), len(written))
	}
	if _, err := Load(path+".position", table+"x"); err == nil {
		t.Error("the position of another table was taken")
	}
	if _, err := OpenFile(path, path+".position", nil); err == nil {
		t.Error("a file without a position was taken")
	}
}

// A webhook that fails gets the lines again; they are signed.
func TestWebhook(t *testing.T) {
	m, client := serve(t)
	begin := time.Now()
	large := bytes.Repeat([]byte{0xff}, 3<<20)
	write(t, m, "a", []byte("one"))
	write(t, m, "z\xff", large)
	var mu sync.Mutex
	var got []byte
	failures := 2
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if failures > 0 {
			failures--
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		h := hmac.New(sha256.New, []byte("secret"))
		h.Write(b)
		if s := r.Header.Get(SignatureHeader); s != "sha256="+hex.EncodeToString(h.Sum(nil)) {
			t.Errorf("signature %q", s)
		}
		got = append(got, b...)
	}))
	defer hook.Close()
	path := filepath.Join(t.TempDir(), "position")
	w := &Webhook{URL: hook.URL, Path: path, Secret: []byte("secret"), Warn: func(err error) { t.Log(err) }}
	f := &Feed{Client: client, Table: table, Start: begin, End: time.Now(), Sink: w, Warn: w.Warn}
	if err := f.Run(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	all := lines(t, got)
	if len(all) != 2 || failures != 0 {
		t.Fatalf("%d lines, %d failures are left", len(all), failures)
	}
	for _, l := range all {
		want := []byte("one")
		if len(l.Row) > 1 {
			want = large
		}
		if l.Type != "USER" || l.Cluster == "" || l.Table != table || !bytes.Equal(*l.Mutations[0].Value, want) || l.Commit.Before(begin.Add(-time.Second)) {
			t.Errorf("%s: %+v", l.Row, l.Commit)
		}
	}
	// Refused for good.
	w.URL = hook.URL + "/%zz"
	f = &Feed{Client: client, Table: table, Start: begin, End: time.Now(), Sink: w, Warn: w.Warn}
	if err := f.Run(t.Context(), nil); err == nil {
		t.Error("posted to no URL")
	}
	f = &Feed{Client: client, Table: table + "x", Start: begin, Sink: w, Warn: w.Warn}
	if err := f.Run(t.Context(), nil); err == nil {
		t.Error("read a table that is not there")
	}
}

// A webhook that answers with a redirect has taken nothing, unless it says that what is posted
// is to be posted there.
func TestWebhookRedirects(t *testing.T) {
	m, client := serve(t)
	begin := time.Now()
	write(t, m, "a", []byte("one"))
	for _, code := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect} {
		again := code == http.StatusTemporaryRedirect // it is posted there, as it says
		got := 0
		hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/old" {
				http.Redirect(w, r, "/new", code)
				return
			}
			b, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			got += len(lines(t, b))
		}))
		w := &Webhook{URL: hook.URL + "/old", Path: filepath.Join(t.TempDir(), "position"), Warn: func(err error) { t.Log(err) }}
		f := &Feed{Client: client, Table: table, Start: begin, End: time.Now(), Sink: w, Warn: w.Warn}
		err := f.Run(t.Context(), nil)
		hook.Close()
		if again {
			if err != nil || got != 1 {
				t.Errorf("%d: %d lines, %v", code, got, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "/new") {
			t.Errorf("%d: %v", code, err)
		}
		at, err := Load(w.Path, table)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range at.Partitions {
			if len(p.Tokens) > 0 || !p.From.Equal(begin) {
				t.Errorf("%d: the position has gone on: %+v", code, p)
			}
		}
	}
}

// A feed that is asked to end does so though its sink does not take anything.
func TestEndsBesideStuckSink(t *testing.T) {
	m, client := serve(t)
	begin := time.Now()
	write(t, m, "a", []byte("one"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		cancel()
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer hook.Close()
	w := &Webhook{URL: hook.URL, Path: filepath.Join(t.TempDir(), "position"), Warn: func(err error) { t.Log(err) }}
	f := &Feed{Client: client, Table: table, Start: begin, Sink: w, Warn: w.Warn}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx, nil) }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it says that all was taken")
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
}
