package console

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"github.com/chromedp/chromedp"
	"golang.org/x/text/unicode/runenames"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

var realRows = flag.Int("console.rows", 20_000, "rows of the Unicode data that TestReal shows, 1000000 in full")

// cell returns a mutation that writes a value.
func cell(family, qualifier string, value []byte) *bigtablepb.Mutation {
	return &bigtablepb.Mutation{Mutation: &bigtablepb.Mutation_SetCell_{SetCell: &bigtablepb.Mutation_SetCell{FamilyName: family, ColumnQualifier: []byte(qualifier), TimestampMicros: 1000, Value: value}}}
}

// unicodeRow is a character of one copy of the Unicode data.
func unicodeRow(r rune, copies int) *bigtablepb.MutateRowsRequest_Entry {
	script := "Common"
	for name, table := range unicode.Scripts {
		if unicode.Is(table, r) {
			script = name
		}
	}
	return &bigtablepb.MutateRowsRequest_Entry{RowKey: fmt.Appendf(nil, "%s#%05X#%02d", script, r, copies),
		Mutations: []*bigtablepb.Mutation{cell("id", "name", []byte(runenames.Name(r))), cell("enc", "utf8", []byte(string(r)))}}
}

// webRow is a page of the paper's Webtable, to which others point. The first has many anchors.
func webRow(n int) *bigtablepb.MutateRowsRequest_Entry {
	e := &bigtablepb.MutateRowsRequest_Entry{RowKey: fmt.Appendf(nil, "com.example.%05d/index.html", n)}
	anchors := 3
	if n == 0 {
		anchors = 5000
	}
	for i := range anchors {
		e.Mutations = append(e.Mutations, cell("anchor", fmt.Sprintf("org.example.%05d", n*7+i), []byte("a page to read")))
	}
	e.Mutations = append(e.Mutations, cell("contents", "", []byte("<!DOCTYPE html><title>Page</title>"+strings.Repeat("<p>Words of a page.</p>", 300))), cell("language", "", []byte("EN")))
	return e
}

// writeRows writes rows, of which next makes them one by one until it returns nil.
func writeRows(t *testing.T, client bigtablepb.BigtableClient, table string, next func() *bigtablepb.MutateRowsRequest_Entry) {
	t.Helper()
	for more := true; more; {
		req := &bigtablepb.MutateRowsRequest{TableName: table}
		for more && len(req.Entries) < 200 {
			e := next()
			if more = e != nil; more {
				req.Entries = append(req.Entries, e)
			}
		}
		if len(req.Entries) == 0 {
			return
		}
		stream, err := client.MutateRows(t.Context(), req)
		for err == nil {
			_, err = stream.Recv()
		}
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
}

// TestReal looks at the Unicode data and at a Webtable under load, a wide row of it included,
// in every theme and width: nothing is cut off.
func TestReal(t *testing.T) {
	browser(t)
	s := start(t, "--emulator", "--slow-request", "2ms")
	const chars, web = instance + "/tables/unicode", instance + "/tables/webtable"
	families := func(names ...string) object {
		all := object{}
		for _, n := range names {
			all[n] = object{"gcRule": object{"maxNumVersions": 1}}
		}
		return object{"columnFamilies": all}
	}
	splits := []object{{"key": []byte("Common")}, {"key": []byte("Han")}, {"key": []byte("Hangul")}, {"key": []byte("Latin")}}
	s.post("/v2/"+instance+"/tables", object{"tableId": "unicode", "table": families("id", "enc"), "initialSplits": splits})
	s.post("/v2/"+instance+"/tables", object{"tableId": "webtable", "table": families("anchor", "contents", "language")})
	conn, err := grpc.NewClient(s.api, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := bigtablepb.NewBigtableClient(conn)
	r, copies, n := rune(0), 0, 0
	var first, name string // of all rows, and what it says
	writeRows(t, client, chars, func() *bigtablepb.MutateRowsRequest_Entry {
		if n++; n > *realRows {
			return nil
		}
		for r++; !unicode.IsGraphic(r); r++ {
			if r > unicode.MaxRune {
				r, copies = 0, copies+1
			}
		}
		e := unicodeRow(r, copies)
		if key := string(e.RowKey); first == "" || key < first {
			first, name = key, runenames.Name(r)
		}
		return e
	})
	pages := max(100, *realRows/50)
	n = -1
	writeRows(t, client, web, func() *bigtablepb.MutateRowsRequest_Entry {
		if n++; n == pages {
			return nil
		}
		return webRow(n)
	})

	loading, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	defer load.Wait()
	defer stop()
	load.Go(func() { // most of it of few pages
		for tick := time.NewTicker(10 * time.Millisecond); loading.Err() == nil; <-tick.C {
			e := webRow(1 + int(float64(pages-1)*rand.Float64()*rand.Float64()*rand.Float64()))
			_, _ = client.MutateRow(loading, &bigtablepb.MutateRowRequest{TableName: web, RowKey: e.RowKey, Mutations: e.Mutations})
			if rows, err := client.ReadRows(loading, &bigtablepb.ReadRowsRequest{TableName: chars, RowsLimit: 100, Rows: &bigtablepb.RowSet{RowRanges: []*bigtablepb.RowRange{
				{StartKey: &bigtablepb.RowRange_StartKeyClosed{StartKeyClosed: fmt.Appendf(nil, "Latin#%05X", rand.IntN(0x250))}}}}}); err == nil {
				for err == nil {
					_, err = rows.Recv()
				}
			}
		}
	})
	for end := time.Now().Add(5 * time.Minute); len(s.heatMap(web).Values) < 2; time.Sleep(time.Second) {
		if time.Now().After(end) {
			t.Fatal("the key visualizer has no two columns")
		}
	}

	b := open(t, s.url)
	at := func(table string) string { return strings.ReplaceAll(url.PathEscape(table), "/", "%2F") }
	b.each(t, []view{{"overview", "#/", "webtable"}, {"table", "#/table/" + at(web), "Locality groups"}, {"data", "#/data/" + at(chars), name}, {"wide-row", "#/data/" + at(web), "org.example.00000"},
		{"keys", "#/keys/" + at(web), "Key visualizer"}, {"keys-read", "#/keys/" + at(chars), "Key visualizer"}, {"charts", "#/charts", "Charts"}, {"slow", "#/slow", "webtable"}, {"tablets", "#/tablets", "unicode"}}, "real-")
}

// TestFullDisk looks at a server without room on its disk: the first page says so, rows can be
// read, and a write that is refused says why.
func TestFullDisk(t *testing.T) {
	browser(t)
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=256m", "none", dir).CombinedOutput(); err != nil {
		t.Skipf("NOT TESTED: no small file system can be mounted: %v %s", err, out)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s := startIn(t, dir, "--emulator")
	t.Cleanup(s.stop) // before the file system goes
	table := s.fill()
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 1<<16); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	// The room that the log has is used up, to the last bytes.
	for _, size := range []int{1 << 18, 1 << 12, 1} {
		body := fmt.Sprintf(`{"rowKey": "YQ==", "mutations": [{"setCell": {"familyName": "f", "timestampMicros": "1000", "value": %q}}]}`, strings.Repeat("YWFh", size))
		eventually(t, "a write is refused", func() bool {
			resp, err := http.Post(s.url+"/v2/"+table+":mutateRow", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			return resp.StatusCode != http.StatusOK
		})
	}
	b := open(t, s.url)
	b.each(t, []view{{"overview", "#/", "free"}, {"data", pagesOf(table)[4].hash, "sensor-0000"}}, "full-")
	b.run(chromedp.EmulateViewport(1280, 900))
	b.press("Write a cell")
	b.run(chromedp.SendKeys(`dialog input[name=key]`, "new"), chromedp.SendKeys(`dialog input[name=qualifier]`, "q"), chromedp.SendKeys(`dialog textarea[name=value]`, "v"))
	b.press("Write")
	b.await(`document.querySelector("dialog .note.bad")`)
	b.shot("full-refused")
	if w := refusals(b.wrong(), "429 /v2/"+table+":mutateRow"); len(w) > 0 {
		t.Error(w)
	}
}

// eventually waits until is returns true.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not yet: %s", what)
		}
	}
}
