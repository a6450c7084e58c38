package console

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

var (
	axeFile = flag.String("console.axe", "", "axe.min.js of axe-core, to check accessibility")
	shots   = flag.String("console.shots", "", "directory for a picture of each page")
)

// A server is a process with a console.
type server struct {
	t    *testing.T
	url  string // http://HOST:PORT
	api  string // HOST:PORT of gRPC
	dir  string
	cmd  *exec.Cmd
	stop func()
}

// start runs the program that the environment names, with flags.
func start(t *testing.T, flags ...string) *server {
	t.Helper()
	return startIn(t, t.TempDir(), flags...)
}

// startIn is start in a directory, which may have the data of an earlier one.
func startIn(t *testing.T, dir string, flags ...string) *server {
	t.Helper()
	return startAs(t, "serve", dir, flags...)
}

// startAs is startIn with a command other than serve.
func startAs(t *testing.T, command, dir string, flags ...string) *server {
	t.Helper()
	exe := os.Getenv("CONFORMANCE_TRESTLE")
	if exe == "" {
		t.Skip("NOT TESTED: CONFORMANCE_TRESTLE does not name a program (make console)")
	}
	cmd := exec.Command(exe, append([]string{command, "--data-dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--memory", "128MiB", "--log-level", "error"}, flags...)...)
	s := &server{t: t, dir: dir, cmd: cmd}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s.stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(s.stop)
	lines := bufio.NewScanner(out)
	for s.url == "" && lines.Scan() {
		if at, ok := strings.CutPrefix(lines.Text(), "Bigtable gRPC API "); ok {
			s.api = strings.TrimSpace(at)
		}
		if at, ok := strings.CutPrefix(lines.Text(), "console "); ok {
			s.url = strings.TrimSuffix(strings.TrimSpace(at), "/console/")
		}
	}
	if s.url == "" {
		t.Fatalf("no console: %s", errs.String())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return s
}

// post makes a request that must be answered with 200.
func (s *server) post(path string, body any) {
	s.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := http.Post(s.url+path, "application/json", bytes.NewReader(b))
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s %s", path, resp.Status, answer)
	}
}

type object = map[string]any

// hostile are texts that would break a page that took them for anything but text.
var hostile = []string{
	`<img src=x onerror="document.title='broken'">`, `</script><script>document.title='broken'</script>`, "a\x00b", "\xff\xfe invalid",
	"\u202egnp.exe\u202c right to left", strings.Repeat("<", 4096), `"><b>bold</b>`, `{{constructor.constructor('x')()}}`, "emoji 😀 ünïcode",
}

// fill makes a table with rows of all kinds, and returns its name.
func (s *server) fill() string {
	const instance = "projects/my-project/instances/my-instance"
	s.post("/v2/"+instance+"/tables", object{"tableId": "measures", "table": object{"columnFamilies": object{"f": object{"gcRule": object{"maxNumVersions": 3}}, "stats": object{}}},
		"initialSplits": []object{{"key": []byte("sensor-0400")}, {"key": []byte("sensor-0800")}}})
	s.post("/v2/"+instance+"/tables", object{"tableId": "hostile", "table": object{"columnFamilies": object{"f": object{}}}})
	set := func(table, key, qualifier string, value []byte) {
		s.post("/v2/"+instance+"/tables/"+table+":mutateRow", object{"rowKey": []byte(key), "mutations": []object{
			{"setCell": object{"familyName": "f", "columnQualifier": []byte(qualifier), "timestampMicros": "-1", "value": value}}}})
	}
	for i := range 60 {
		key := fmt.Sprintf("sensor-%04d", i*20)
		set("measures", key, "temperature", fmt.Appendf(nil, `{"celsius": %d.%d, "place": "hall %d"}`, 15+i%9, i%10, i%7))
		set("measures", key, "serial", []byte{0, 0, 0, 0, 0, 0, byte(i), 7})
	}
	for i, h := range hostile {
		set("hostile", fmt.Sprintf("%d ", i)[:1]+h[:min(len(h), 4000)], h[:min(len(h), 4000)], []byte(h))
	}
	return instance + "/tables/measures"
}

// A tab is a page of a browser, and what is wrong with it.
type tab struct {
	context.Context
	t      *testing.T
	origin string

	mu  sync.Mutex
	bad []string
}

// browser returns the program of the browser; the test is skipped where there is none.
func browser(t *testing.T) string {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("NOT TESTED: there is no chromium")
	}
	// Debian's script starts the program with the options of the machine.
	if real := "/usr/lib/chromium/chromium"; exists(real) {
		chromium = real
	}
	return chromium
}

// open starts a browser.
func open(t *testing.T, origin string, flags ...chromedp.ExecAllocatorOption) *tab {
	t.Helper()
	o := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(browser(t)), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()))
	ctx, closeAll := chromedp.NewExecAllocator(context.Background(), append(o, flags...)...)
	ctx, closeBrowser := chromedp.NewContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, 20*time.Minute)
	t.Cleanup(func() {
		// Its first process is waited for. Others may write to its directory, which is removed next.
		var all []string
		if c := chromedp.FromContext(ctx); c.Browser != nil {
			all = processesOf(c.Browser.Process().Pid)
		}
		cancel()
		closeBrowser()
		closeAll()
		eventually(t, "the browser's processes have ended", func() bool { return !slices.ContainsFunc(all, runs) })
	})
	b := &tab{Context: ctx, t: t, origin: origin}
	chromedp.ListenTarget(ctx, b.listen)
	b.run(network.Enable(), log.Enable(), chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument(`addEventListener("securitypolicyviolation", (e) => console.error("CSP: " + e.violatedDirective + " " + e.blockedURI + " " + e.sourceFile + ":" + e.lineNumber + " " + e.sample))`).Do(ctx)
		return err
	}))
	return b
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (b *tab) listen(ev any) {
	var text string
	switch e := ev.(type) {
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning || e.Type == runtime.APITypeAssert {
			text = "console:"
			for _, a := range e.Args {
				text += " " + string(a.Value) + a.Description
			}
		}
	case *runtime.EventExceptionThrown:
		text = "exception: " + e.ExceptionDetails.Error()
	case *log.EventEntryAdded:
		// A server that is not ready says so by its status.
		if e.Entry.Level == log.LevelError && !strings.HasSuffix(e.Entry.URL, "/readyz") || e.Entry.Source == log.SourceSecurity {
			text = fmt.Sprintf("log: %s %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		if u := e.Request.URL; !strings.HasPrefix(u, b.origin+"/") && !strings.HasPrefix(u, "data:") && !strings.HasPrefix(u, "blob:"+b.origin) && u != "about:blank" {
			text = "request to " + u
		}
	}
	if text != "" {
		b.mu.Lock()
		b.bad = append(b.bad, text)
		b.mu.Unlock()
	}
}

// wrong returns what went wrong since it was last called.
func (b *tab) wrong() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.bad
	b.bad = nil
	return out
}

func (b *tab) run(actions ...chromedp.Action) {
	b.t.Helper()
	if err := chromedp.Run(b, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// show goes to a page and waits until it has what it asks for.
func (b *tab) show(hash string) {
	b.t.Helper()
	b.run(chromedp.Navigate("about:blank"), chromedp.Navigate(b.origin+"/console/"+hash))
	b.settle()
}

func (b *tab) settle() {
	b.t.Helper()
	b.await(`document.querySelector("main") && !document.querySelector('[aria-busy="true"]') && ![...document.querySelectorAll(".loading")].length`)
	time.Sleep(100 * time.Millisecond) // charts are drawn with the next frame
}

// await waits until an expression is true.
func (b *tab) await(expr string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b, time.Minute)
	defer cancel()
	if err := chromedp.Run(ctx, chromedp.Poll("!!("+expr+")", nil, chromedp.WithPollingInterval(50*time.Millisecond))); err != nil {
		var text string
		_ = chromedp.Run(b, chromedp.Evaluate("document.body.innerText", &text))
		b.t.Fatalf("%s: %v; the page says %.2000s; %q", expr, err, text, b.wrong())
	}
}

func (b *tab) text() (out string) {
	b.t.Helper()
	b.run(chromedp.Evaluate("document.body.innerText", &out))
	return out
}

// A violation is what axe-core has found.
type violation struct {
	ID, Impact, Help string
	Nodes            []struct {
		HTML    string
		Summary string `json:"failureSummary"`
	}
}

// axe returns the serious and critical findings about the page.
func (b *tab) axe() (out []violation) {
	b.t.Helper()
	if *axeFile == "" {
		return nil
	}
	code, err := os.ReadFile(*axeFile)
	if err != nil {
		b.t.Fatal(err)
	}
	var all []violation
	b.run(chromedp.Evaluate(string(code)+";0", nil), chromedp.Evaluate(`axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"], resultTypes: ["violations"]}).then((r) => r.violations)`, &all,
		func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	for _, v := range all {
		if v.Impact == "serious" || v.Impact == "critical" {
			out = append(out, v)
		}
	}
	return out
}

func (b *tab) shot(name string) {
	b.t.Helper()
	if *shots == "" {
		return
	}
	var png []byte
	b.run(chromedp.FullScreenshot(&png, 100))
	if err := os.WriteFile(filepath.Join(*shots, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// A view is a page with what has to be on it.
type view struct{ name, hash, want string }

// pagesOf are all pages.
func pagesOf(table string) []view {
	t := url.PathEscape(table)
	t = strings.ReplaceAll(t, "/", "%2F")
	i := strings.ReplaceAll("projects/my-project/instances/my-instance", "/", "%2F")
	return []view{
		{"overview", "#/", "Tables by load"}, {"instances", "#/instances", "measures"}, {"instance", "#/instance/" + i, "App profiles"}, {"table", "#/table/" + t, "Locality groups"},
		{"data", "#/data/" + t, "sensor-0000"}, {"hostile", "#/data/" + strings.ReplaceAll(t, "measures", "hostile"), "onerror"}, {"keys", "#/keys/" + t, "Key visualizer"}, {"tablets", "#/tablets", "sensor-0400"},
		{"charts", "#/charts", "Charts"}, {"slow", "#/slow", "Slow requests"}, {"backups", "#/backups", "Back up a table"}, {"access", "#/access", "Service accounts"},
		{"settings", "#/settings", "slow-request"}, {"sql", "#/sql/" + i, "GoogleSQL"}, {"nowhere", "#/nowhere", "no such page"},
	}
}

var themes = []string{"light", "dark"}

var widths = []int64{390, 1280, 1920}

// each shows views in every theme and width: nothing may be wrong with them.
func (b *tab) each(t *testing.T, views []view, prefix string) {
	t.Helper()
	for _, theme := range themes {
		b.run(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}, {Name: "prefers-reduced-motion", Value: "reduce"}}))
		for _, width := range widths {
			b.run(chromedp.EmulateViewport(width, 900))
			for _, v := range views {
				name := fmt.Sprintf("%s%s-%s-%d", prefix, v.name, theme, width)
				b.show(v.hash)
				if text := b.text(); !strings.Contains(text, v.want) {
					t.Errorf("%s: %q is not on the page: %.1000s", name, v.want, text)
				}
				var title string
				b.run(chromedp.Title(&title))
				if strings.Contains(title, "broken") {
					t.Errorf("%s: title %q", name, title)
				}
				for _, c := range b.cut() {
					t.Errorf("%s: cut off: %s", name, c)
				}
				b.shot(name)
				for _, v := range b.axe() {
					for _, n := range v.Nodes[:min(2, len(v.Nodes))] {
						t.Errorf("%s: %s (%s): %.200s: %.300s", name, v.ID, v.Help, n.HTML, n.Summary)
					}
				}
				for _, w := range b.wrong() {
					t.Errorf("%s: %s", name, w)
				}
			}
		}
	}
}

// cut returns what is wider than the room that it has.
func (b *tab) cut() (out []string) {
	b.t.Helper()
	b.run(chromedp.Evaluate(`[document.documentElement, ...document.querySelectorAll(".scroll, pre, .card, .tile, dialog")].filter((x) => x.checkVisibility() && x.scrollWidth > x.clientWidth + 1).map((x) => x.tagName + " " + x.className + " by " + (x.scrollWidth - x.clientWidth) + " px: " + x.innerText.slice(0, 200))`, &out))
	return out
}

// TestPages shows every page in every theme and width: nothing may be wrong with it.
func TestPages(t *testing.T) {
	browser(t)
	s := start(t, "--emulator", "--slow-request", "1ms")
	table := s.fill()
	time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + 2*time.Second))) // a column of the key visualizer
	b := open(t, s.url)
	b.each(t, pagesOf(table), "")
}

// TestWork writes a cell, reads it, runs a query and deletes a table by the console's
// own controls, all by keyboard or click.
func TestWork(t *testing.T) {
	browser(t)
	s := start(t, "--emulator")
	table := s.fill()
	b := open(t, s.url)
	b.run(chromedp.EmulateViewport(1280, 900))
	t.Run("the first page", func(t *testing.T) {
		b.run(chromedp.Navigate(s.url + "/"))
		b.await(`location.pathname === "/console/"`)
	})
	press := func(label string) {
		t.Helper()
		b.await(fmt.Sprintf(`[...document.querySelectorAll("button, a")].find((x) => x.textContent.trim() === %q)`, label))
		b.run(chromedp.Evaluate(fmt.Sprintf(`[...document.querySelectorAll("button, a")].filter((x) => x.textContent.trim() === %q).at(-1).click()`, label), nil))
	}
	b.show(pagesOf(table)[4].hash)
	press("Write a cell")
	b.run(chromedp.SendKeys(`dialog input[name=key]`, `new\x00row`), chromedp.SendKeys(`dialog input[name=qualifier]`, "q"), chromedp.SendKeys(`dialog textarea[name=value]`, "<b>written</b>"))
	press("Write")
	b.await(`document.body.innerText.includes("<b>written</b>")`)
	b.show("#/sql/" + strings.ReplaceAll("projects/my-project/instances/my-instance", "/", "%2F"))
	b.run(chromedp.SendKeys("textarea", "SELECT COUNT(*) AS n, 9007199254740993 AS large FROM measures"))
	press("Run")
	b.await(`document.body.innerText.includes("9007199254740993") && document.body.innerText.includes("61")`)
	b.show(pagesOf(table)[3].hash)
	press("Delete")
	press("Delete with all its rows")
	b.await(`document.querySelector("dialog").innerText.includes("Type measures to confirm")`)
	b.run(chromedp.SendKeys(`dialog input`, "measures"))
	press("Delete with all its rows")
	b.await(`location.hash.startsWith("#/instance/") && !document.body.innerText.includes("measures")`)
	if w := b.wrong(); len(w) > 0 {
		t.Error(w)
	}
}

// TestLogin logs in with a key file, whose private key must not be in any request.
func TestLogin(t *testing.T) {
	browser(t)
	s := start(t, "--auth", "on")
	b := open(t, s.url)
	b.run(chromedp.EmulateViewport(1280, 900))
	key := filepath.Join(s.dir, "data", "root-key.json")
	text, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Private string `json:"private_key"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	secret := strings.Split(file.Private, "\n")[3]
	var bodies []string
	var mu sync.Mutex
	chromedp.ListenTarget(b, func(ev any) {
		if e, ok := ev.(*network.EventRequestWillBeSent); ok {
			mu.Lock()
			defer mu.Unlock()
			for _, p := range e.Request.PostDataEntries {
				raw, _ := base64.StdEncoding.DecodeString(p.Bytes)
				bodies = append(bodies, string(raw))
			}
		}
	})
	b.show("")
	b.shot("login")
	for _, v := range b.axe() {
		t.Errorf("login: %s %s", v.ID, v.Help)
	}
	b.run(chromedp.SetUploadFiles(`input[type=file]`, []string{key}), chromedp.Click(`button[type=submit]`))
	b.await(`document.querySelector(".side")`)
	b.settle()
	var cookies []*network.Cookie
	b.run(chromedp.ActionFunc(func(ctx context.Context) (err error) {
		cookies, err = network.GetCookies().Do(ctx)
		return err
	}))
	if len(cookies) != 1 || !cookies[0].HTTPOnly || !cookies[0].Secure || cookies[0].SameSite != network.CookieSameSiteStrict || !strings.HasPrefix(cookies[0].Name, "__Host-") || time.Until(time.Unix(int64(cookies[0].Expires), 0)) > 8*time.Hour+time.Minute {
		t.Errorf("cookies %+v", cookies)
	}
	mu.Lock()
	if len(bodies) < 2 || slices.ContainsFunc(bodies, func(b string) bool { return strings.Contains(b, secret) }) {
		t.Errorf("%d bodies, or one has the private key", len(bodies))
	}
	mu.Unlock()
	b.show("#/access")
	if !strings.Contains(b.text(), "Project") {
		t.Error(b.text())
	}
	b.show("#/settings")
	if !strings.Contains(b.text(), "slow-request") {
		t.Error(b.text())
	}
	for _, w := range b.wrong() {
		t.Error(w)
	}
	b.run(chromedp.Evaluate(`[...document.querySelectorAll("button")].find((x) => x.textContent === "Log out").click()`, nil))
	b.await(`document.querySelector("input[type=file]")`)
}

// TestEmpty looks at a server that nobody has used yet.
func TestEmpty(t *testing.T) {
	browser(t)
	s := start(t)
	b := open(t, s.url)
	b.run(chromedp.EmulateViewport(1280, 900))
	for _, p := range []struct{ name, hash, want string }{{"overview", "#/", "createinstance"}, {"instances", "#/instances", "no instance yet"}, {"keys", "#/keys", "createtable"}, {"sql", "#/sql", "createtable"}, {"backups", "#/backups", "createbackup"}, {"tablets", "#/tablets", "Jobs"}} {
		b.show(p.hash)
		if text := b.text(); !strings.Contains(text, p.want) {
			t.Errorf("%s: %q is not on the page: %s", p.name, p.want, text)
		}
		b.shot("empty-" + p.name)
	}
	for _, w := range b.wrong() {
		t.Error(w)
	}
}
