package console

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/memory"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/sirupsen/logrus"
	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/hrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/engine/loopback"
)

const instance = "projects/my-project/instances/my-instance"

// eval runs a program in the page and reads what it returns.
func (b *tab) eval(code string, out any) {
	b.t.Helper()
	b.run(chromedp.Evaluate("(async () => {"+code+"})()", out, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
}

// logIn logs in with the key in a file.
func (b *tab) logIn(key string) {
	b.t.Helper()
	b.show("")
	b.run(chromedp.SetUploadFiles(`input[type=file]`, []string{key}), chromedp.Click(`button[type=submit]`))
	b.await(`document.querySelector(".side")`)
	b.settle()
}

// press clicks on the last control of a label.
func (b *tab) press(label string) {
	b.t.Helper()
	const find = `[...document.querySelectorAll("button, a")].filter((x) => x.textContent.trim().startsWith(%q)).at(-1)`
	b.await(fmt.Sprintf(find, label))
	b.run(chromedp.Evaluate(fmt.Sprintf(find+".click()", label), nil))
}

// refused is what the browser logs of an answer that says why something was not done.
var refused = regexp.MustCompile(`^log: network Failed to load resource: the server responded with a status of (\d+) \(.*\) https?://[^/]+([^?]*)`)

// refusals takes away that the browser has logged the answers that are expected, as "STATUS PATH":
// pages show what they say.
func refusals(wrong []string, expected ...string) (out []string) {
	for _, w := range wrong {
		if m := refused.FindStringSubmatch(w); m == nil || !slices.Contains(expected, m[1]+" "+m[2]) {
			out = append(out, w)
		}
	}
	return out
}

// TestReader looks at all pages with an account that may read one instance: what it may
// not see or do is shown as such, with the permission that is missing.
func TestReader(t *testing.T) {
	browser(t)
	s := start(t, "--auth", "on", "--emulator")
	b := open(t, s.url)
	b.run(chromedp.EmulateViewport(1280, 900))
	b.logIn(filepath.Join(s.dir, "data", "root-key.json"))
	var key string
	b.eval(`const post = async (path, body) => { const r = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }); if (!r.ok) throw new Error(path + ": " + await r.text()); return r.json(); };
		await post("/v2/`+instance+`/tables", { tableId: "measures", table: { columnFamilies: { f: {} } } });
		await post("/v2/`+instance+`/tables", { tableId: "hostile", table: { columnFamilies: { f: {} } } });
		await post("/v2/projects/other/instances/my-instance/tables", { tableId: "secret", table: { columnFamilies: { f: {} } } });
		await post("/v2/`+instance+`/tables/measures:mutateRow", { rowKey: btoa("sensor-0000"), mutations: [{ setCell: { familyName: "f", columnQualifier: "cQ==", timestampMicros: "-1", value: "dg==" } }] });
		const account = await post("/v1/projects/my-project/serviceAccounts", { accountId: "reader" });
		await post("/v2/`+instance+`:setIamPolicy", { policy: { version: 3, bindings: [{ role: "roles/bigtable.reader", members: ["serviceAccount:" + account.email] }] } });
		return (await post("/v1/" + account.name + "/keys", { privateKeyType: "TYPE_GOOGLE_CREDENTIALS_FILE" })).privateKeyData;`, &key)
	file, err := base64.StdEncoding.DecodeString(key)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(s.dir, "reader.json")
	if err := os.WriteFile(name, file, 0o600); err != nil {
		t.Fatal(err)
	}
	b.press("Log out")
	b.await(`document.querySelector("input[type=file]")`)
	b.logIn(name)
	table := instance + "/tables/measures"
	named := map[string]string{"overview": "bigtable.tables.get", "settings": "bigtable.tables.get", "charts": "bigtable.tables.get", "slow": "", "access": "iam.serviceAccounts.list"}
	for _, p := range pagesOf(table) {
		b.show(p.hash)
		b.await(`document.querySelector("h1")`)
		text := b.text()
		if strings.Contains(text, "secret") {
			t.Errorf("%s shows a table of another: %s", p.name, text)
		}
		if !strings.Contains(text, named[p.name]) {
			t.Errorf("%s does not name %s: %s", p.name, named[p.name], text)
		}
		if n := strings.Count(text, "You may not"); n > strings.Count(text, "ermission '")+strings.Count(text, "ermission \"")+strings.Count(text, "bigtable.")+strings.Count(text, "iam.") {
			t.Errorf("%s refuses without a permission: %s", p.name, text)
		}
		var off []string
		b.eval(`return [...document.querySelectorAll("button[aria-disabled=true]")].filter((x) => !/You need the permission [a-z]+\.[a-zA-Z]+\.[a-zA-Z]+\./.test(x.title)).map((x) => x.outerHTML)`, &off)
		if len(off) > 0 {
			t.Errorf("%s: %v", p.name, off)
		}
		b.shot("reader-" + p.name)
	}
	for _, refused := range []struct{ hash, button, permission string }{
		{pagesOf(table)[4].hash, "Write a cell", "bigtable.tables.mutateRows"},
		{pagesOf(table)[3].hash, "Add a family", "bigtable.tables.update"},
		{pagesOf(table)[3].hash, "Delete", "bigtable.tables.delete"},
		{pagesOf(table)[2].hash, "Create a table", "bigtable.tables.create"},
		{"#/tablets/" + strings.ReplaceAll(table, "/", "%2F"), "Split", "bigtable.tables.update"},
		{"#/tablets", "Split", "bigtable.tables.update"},
		{"#/backups", "Back up a table", "bigtable.backups.create"},
	} {
		b.show(refused.hash)
		b.await(fmt.Sprintf(`[...document.querySelectorAll("button[aria-disabled=true]")].some((x) => x.textContent.startsWith(%q) && x.title.includes(%q))`, refused.button, refused.permission))
		b.press(refused.button)
		time.Sleep(50 * time.Millisecond)
		var opened bool
		b.run(chromedp.Evaluate(`!!document.querySelector("dialog")`, &opened))
		if opened {
			t.Errorf("%s opens a dialog", refused.button)
		}
	}
	// Of which project an instance will be is not known before.
	b.show("#/instances")
	b.press("Create an instance")
	b.await(`document.querySelector("dialog")`)
	b.run(chromedp.SendKeys(`dialog input[name=id]`, "another"), chromedp.SendKeys(`dialog input[name=display]`, "Another"))
	b.run(chromedp.Evaluate(`document.querySelector("dialog button[type=submit]").click()`, nil))
	b.await(`document.querySelector("dialog").innerText.includes("bigtable.instances.create")`)
	b.shot("reader-refused")
	if w := refusals(b.wrong(), "403 /admin/history", "403 /admin/servers", "403 /admin/settings", "403 /v1/projects/my-project/serviceAccounts", "403 /v1/projects/my-project:getIamPolicy",
		"403 /v2/operations/projects/my-project/operations", "403 /v2/projects/my-project/instances", "403 /v2/"+instance+":getIamPolicy", "403 /v2/"+table+":getIamPolicy"); len(w) > 0 {
		t.Error(w)
	}
}

// TestLateTables: a page that does not know yet which tables there are says so, and does not say
// that there are none.
func TestLateTables(t *testing.T) {
	browser(t)
	s := start(t, "--auth", "on", "--emulator")
	b := open(t, s.url)
	b.run(chromedp.EmulateViewport(1280, 900))
	b.logIn(filepath.Join(s.dir, "data", "root-key.json"))
	b.eval(`const r = await fetch("/v2/`+instance+`/tables", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ tableId: "measures", table: { columnFamilies: { f: {} } } }) }); if (!r.ok) throw new Error(await r.text());`, nil)
	b.run(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument(`const at = fetch; fetch = async (url, o) => { if (url.startsWith("/admin/tables")) await new Promise((r) => setTimeout(r, 1000)); return at(url, o); }`).Do(ctx)
		return err
	}))
	for _, p := range []struct{ hash, want string }{{"#/", "measures"}, {"#/instances", "my-instance"}, {"#/keys", "measures"}, {"#/sql", "measures"}, {"#/backups", "Back up a table"}, {"#/access", "Policy of project my-project"}} {
		b.show(p.hash)
		if text := b.text(); !strings.Contains(text, p.want) {
			t.Errorf("%s: %q is not on the page: %.1000s", p.hash, p.want, text)
		}
	}
	if w := b.wrong(); len(w) > 0 {
		t.Error(w)
	}
}

// TestReadOnly: with --console read, what changes something is offered nowhere, and is
// refused to who asks for it from the page all the same.
func TestReadOnly(t *testing.T) {
	browser(t)
	s := start(t, "--emulator", "--console", "read")
	table := s.fill()
	b := open(t, s.url)
	b.run(chromedp.EmulateViewport(1280, 900))
	for _, p := range pagesOf(table) {
		b.show(p.hash)
		if text := b.text(); !strings.Contains(text, p.want) || !strings.Contains(text, "For reading only") {
			t.Errorf("%s: %s", p.name, text)
		}
		var n int
		b.eval(`let n = 0; for (const x of document.querySelectorAll("main button")) { if (x.type === "submit" || x.getAttribute("aria-disabled") === "true") continue; x.click(); await new Promise((r) => setTimeout(r, 30)); if (document.querySelector("dialog") && !document.querySelector("dialog").innerText.includes("Look at a project")) n++; document.querySelector("dialog")?.close(); await new Promise((r) => setTimeout(r, 30)); } return n`, &n)
		if n > 0 {
			t.Errorf("%s: %d buttons open a dialog", p.name, n)
		}
	}
	b.show(pagesOf(table)[4].hash)
	b.shot("read-only")
	if w := b.wrong(); len(w) > 0 {
		t.Error(w)
	}
	var codes []int
	b.eval(`const out = []; for (const [method, path] of [["POST", "/v2/`+table+`:mutateRow"], ["POST", "/v2/`+instance+`/tables"], ["DELETE", "/v2/`+table+`"], ["POST", "/admin/tablets/split"], ["POST", "/v2/`+instance+`:setIamPolicy"], ["PATCH", "/v2/`+table+`"], ["POST", "/v2/`+table+`%3Arows:modifyColumnFamilies"]]) out.push((await fetch(path, { method, headers: { "Content-Type": "application/json" }, body: "{}" })).status); return out`, &codes)
	for i, code := range codes {
		if code != http.StatusForbidden {
			t.Errorf("request %d is answered with %d", i, code)
		}
	}
	t.Run("login", func(t *testing.T) {
		s := start(t, "--auth", "on", "--console", "read")
		b := open(t, s.url)
		b.run(chromedp.EmulateViewport(1280, 900))
		b.logIn(filepath.Join(s.dir, "data", "root-key.json"))
		if text := b.text(); !strings.Contains(text, "For reading only") {
			t.Error(text)
		}
	})
}

// TestKeyboard goes through every page by the Tab key: each control is reached, can be
// seen to have the focus, and none keeps it.
func TestKeyboard(t *testing.T) {
	browser(t)
	s := start(t, "--emulator", "--slow-request", "1ms")
	table := s.fill()
	b := open(t, s.url)
	b.run(chromedp.EmulateViewport(1280, 900))
	const controls = `[...document.querySelectorAll("a[href], button:not([disabled]), input:not([disabled]), select, textarea, summary, [tabindex='0']")].filter((x) => x.checkVisibility())`
	for _, p := range pagesOf(table) {
		b.show(p.hash)
		var n int
		b.run(chromedp.Evaluate(controls+".length", &n))
		b.run(chromedp.Evaluate(`window.reached = new Set(); window.unseen = []; document.activeElement.blur(); document.addEventListener("focusin", (e) => { window.reached.add(e.target); const s = getComputedStyle(e.target); if (s.outlineStyle === "none" || parseFloat(s.outlineWidth) < 2) window.unseen.push(e.target.outerHTML.slice(0, 200)); })`, nil))
		for range n + 3 {
			b.run(chromedp.KeyEvent(kb.Tab))
		}
		var left, unseen []string
		b.run(chromedp.Evaluate(controls+`.filter((x) => !window.reached.has(x)).map((x) => x.outerHTML.slice(0, 200))`, &left), chromedp.Evaluate(`window.unseen`, &unseen))
		if len(left) > 0 || len(unseen) > 0 || n < 10 {
			t.Errorf("%s: of %d controls %d are not reached: %v; the focus is not seen on %v", p.name, n, len(left), left, unseen)
		}
	}
	// A dialog opens, keeps the focus, and gives it back.
	b.show(pagesOf(table)[4].hash)
	b.run(chromedp.Focus(`main .head button`), chromedp.KeyEvent(kb.Enter))
	b.await(`document.querySelector("dialog")?.contains(document.activeElement)`)
	for range 12 {
		b.run(chromedp.KeyEvent(kb.Tab))
		b.await(`document.activeElement === document.body || document.querySelector("dialog").contains(document.activeElement)`)
	}
	b.run(chromedp.Focus(`dialog button[type=button]`), chromedp.KeyEvent(kb.Enter))
	b.await(`!document.querySelector("dialog") && document.activeElement === document.querySelector("main .head button")`)
	b.run(chromedp.KeyEvent(kb.Enter))
	b.await(`document.querySelector("dialog")`)
	b.run(chromedp.KeyEvent(kb.Escape))
	b.await(`!document.querySelector("dialog") && document.activeElement === document.querySelector("main .head button")`)
	if w := b.wrong(); len(w) > 0 {
		t.Error(w)
	}
}

// TestChecks: each check of a page sees what it is for.
func TestChecks(t *testing.T) {
	browser(t)
	s := start(t)
	b := open(t, s.url)
	b.show("#/")
	if w := b.wrong(); len(w) > 0 {
		t.Fatal(w)
	}
	for want, code := range map[string]string{
		"console: ":                      `console.error("planted")`,
		"exception: ":                    `setTimeout(() => { throw new Error("planted"); })`,
		"CSP: script-src":                `const i = document.createElement("a"); i.href = "javascript:0"; document.body.append(i); i.click()`,
		"CSP: require-trusted-types-for": `try { document.createElement("div").innerHTML = "<b>x</b>"; } catch {}`,
		"CSP: style-src":                 `const s = document.createElement("style"); s.textContent = "p { color: red }"; document.head.append(s)`,
		"CSP: connect-src":               `fetch("http://127.0.0.1:1/x").catch(() => {})`,
	} {
		b.eval(code, nil)
		time.Sleep(200 * time.Millisecond)
		if w := b.wrong(); !strings.Contains(strings.Join(w, "\n"), want) {
			t.Errorf("%s is not seen: %q", want, w)
		}
	}
	// The policy keeps requests to others from being made, so that only without it is one seen.
	b.run(page.SetBypassCSP(true))
	b.show("#/")
	b.eval(`fetch("http://127.0.0.1:1/x").catch(() => {})`, nil)
	time.Sleep(200 * time.Millisecond)
	if w := b.wrong(); !strings.Contains(strings.Join(w, "\n"), "request to http://127.0.0.1:1/x") {
		t.Errorf("a request to another origin is not seen: %q", w)
	}
	if *axeFile == "" {
		t.Skip("NOT TESTED: no axe-core is given")
	}
	b.eval(`const i = document.createElement("input"); document.querySelector("main").append(i)`, nil)
	if found := b.axe(); len(found) == 0 {
		t.Error("axe sees no input without a label")
	}
}

// TestOpen: when a test is over, none of its browser's processes is left to write to the
// directory that the test removes.
func TestOpen(t *testing.T) {
	s := start(t)
	var all []string
	for range 5 {
		t.Run("browser", func(t *testing.T) {
			b := open(t, s.url)
			b.show("#/")
			all = processesOf(chromedp.FromContext(b).Browser.Process().Pid)
		})
		if len(all) < 3 || slices.ContainsFunc(all, runs) {
			t.Errorf("of %d processes some run on", len(all))
		}
	}
}

// TestProtobuf reads values by the descriptors of a schema bundle.
func TestProtobuf(t *testing.T) {
	browser(t)
	s := start(t, "--emulator")
	table := s.fill()
	set, err := proto.Marshal(&descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{protodesc.ToFileDescriptorProto(descriptorpb.File_google_protobuf_descriptor_proto)}})
	if err != nil {
		t.Fatal(err)
	}
	s.post("/v2/"+table+"/schemaBundles?schemaBundleId=descriptors", object{"protoSchema": object{"protoDescriptors": set}})
	value, err := proto.Marshal(&descriptorpb.FieldDescriptorProto{Name: proto.String("price <b>"), Number: proto.Int32(-3), Label: descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum(), Options: &descriptorpb.FieldOptions{Packed: proto.Bool(true), Targets: []descriptorpb.FieldOptions_OptionTargetType{descriptorpb.FieldOptions_TARGET_TYPE_FILE, descriptorpb.FieldOptions_TARGET_TYPE_ENUM}}})
	if err != nil {
		t.Fatal(err)
	}
	for key, v := range map[string][]byte{"a-message": value, "a-torn-message": value[:len(value)-1]} {
		s.post("/v2/"+table+":mutateRow", object{"rowKey": []byte(key), "mutations": []object{{"setCell": object{"familyName": "f", "columnQualifier": []byte("m"), "timestampMicros": "-1", "value": v}}}})
	}
	b := open(t, s.url)
	b.run(chromedp.EmulateViewport(1280, 900))
	b.show(pagesOf(table)[4].hash)
	choose := func(label, option string) {
		b.eval(fmt.Sprintf(`const l = [...document.querySelectorAll("label.field")].find((x) => x.firstChild.textContent === %q).querySelector("select"); l.value = %q; l.dispatchEvent(new Event("input", { bubbles: true })); await new Promise((r) => setTimeout(r, 100)); if (l.value !== %q) throw new Error("no such option")`, label, option, option), nil)
	}
	choose("Values as", "proto")
	choose("Message", "google.protobuf.FieldDescriptorProto")
	text := b.text()
	for _, want := range []string{`"name": "price <b>"`, `"number": -3`, `"label": "LABEL_REPEATED"`, `"packed": true`, `"TARGET_TYPE_FILE"`, `"TARGET_TYPE_ENUM"`, "not such a message"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not shown: %.2000s", want, text)
		}
	}
	b.shot("protobuf")
	if w := b.wrong(); len(w) > 0 {
		t.Error(w)
	}
}

// TestBackups: of many backups there are pages, and a table shows its newest.
func TestBackups(t *testing.T) {
	browser(t)
	s := start(t, "--emulator")
	table := s.fill()
	const many = 52
	for i := range many {
		s.post("/v2/"+instance+"/clusters/default/backups?backupId="+fmt.Sprintf("backup-%02d", i), object{"sourceTable": table, "expireTime": time.Now().Add(24 * time.Hour).Format(time.RFC3339)})
	}
	b := open(t, s.url)
	b.run(chromedp.EmulateViewport(1280, 900))
	// turn presses a button and returns the backups that are shown once the page has a text.
	turn := func(button, text string) (shown []string) {
		t.Helper()
		if button != "" {
			b.eval(fmt.Sprintf(`[...document.querySelectorAll("button")].find((x) => x.textContent === %q).click()`, button), nil)
		}
		b.await(fmt.Sprintf(`document.body.innerText.includes(%q)`, text))
		b.eval(`return [...document.querySelectorAll('[aria-label="Backups"] tbody tr')].map((r) => r.innerText.match(/backup-\d+/)[0])`, &shown)
		return shown
	}
	of := func(shown []string, n int, first, last string) {
		t.Helper()
		if len(shown) != n || shown[0] != first || shown[n-1] != last {
			t.Errorf("%q, want %d from %s to %s", shown, n, first, last)
		}
	}
	b.show("#/backups")
	of(turn("", "1 to 50 of 52"), 50, "backup-51", "backup-02")
	b.shot("backups-first")
	of(turn("Next", "51 to 52 of 52"), 2, "backup-01", "backup-00")
	of(turn("Previous", "1 to 50 of 52"), 50, "backup-51", "backup-02")
	b.show(pagesOf(table)[3].hash)
	of(turn("", "These are the 50 newest."), 50, "backup-51", "backup-02")
	// A page whose last row is gone is left.
	b.show("#/backups")
	of(turn("Next", "51 to 52 of 52"), 2, "backup-01", "backup-00")
	b.eval(`for (const n of ["00", "01"]) await fetch("/v2/`+instance+`/clusters/default/backups/backup-" + n, { method: "DELETE" })`, nil)
	b.await(`document.querySelector('[aria-label="Backups"]')?.innerText.includes("backup-49")`)
	if w := b.wrong(); len(w) > 0 {
		t.Error(w)
	}
}

// TestBackupsOverHBase: a gateway over HBase has no tablets, and its admin service refuses
// lists. The page has backups, tables and operations all the same.
func TestBackupsOverHBase(t *testing.T) {
	browser(t)
	zookeeper := loopback.Addr(t)
	start(t, "--emulator", "--hbase-listen", loopback.Addr(t), "--hbase-zookeeper-listen", zookeeper, "--hbase-instance", "my-project/my-instance")
	s := startAs(t, "gateway", t.TempDir(), "--emulator", "--backend", "hbase://"+zookeeper, "--hbase-instance", "my-project/my-instance")
	s.post("/v2/"+instance+"/tables", object{"tableId": "measures", "table": object{"columnFamilies": object{"f": object{}}}})
	for _, id := range []string{"z-older", "a-newer"} {
		s.post("/v2/"+instance+"/clusters/default/backups?backupId="+id, object{"sourceTable": instance + "/tables/measures", "expireTime": time.Now().Add(24 * time.Hour).Format(time.RFC3339)})
	}
	b := open(t, s.url)
	b.run(chromedp.EmulateViewport(1280, 900))
	b.show("#/")
	b.run(chromedp.Evaluate(`localStorage.setItem("trestle.projects", '["my-project"]')`, nil)) // as "Look at a project" does
	b.show("#/backups")
	text := b.text()
	newer, older := strings.Index(text, "a-newer"), strings.Index(text, "z-older")
	if newer < 0 || older < newer || !strings.Contains(text, "CreateBackup") || !strings.Contains(text, "No job has run") {
		t.Errorf("%.2000s", text)
	}
	b.shot("backups-hbase")
	b.press("Back up a table")
	b.await(`document.querySelector("dialog option")?.value === "` + instance + `/tables/measures"`)
	if w := refusals(b.wrong(), "409 /admin/backups", "409 /admin/jobs", "409 /admin/servers", "409 /admin/tables"); len(w) > 0 {
		t.Error(w)
	}
}

// TestLargeValue looks at a value of 100 MiB: its beginning and its length are shown, and the
// browser stays small.
func TestLargeValue(t *testing.T) {
	browser(t)
	s := start(t, "--emulator", "--memory", "2GiB")
	table := s.fill()
	conn, err := grpc.NewClient(s.api, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const size = 100 << 20
	m := mutation(size)
	copy(m[0].GetSetCell().Value, "begins so")
	if _, err := bigtablepb.NewBigtableClient(conn).MutateRow(t.Context(), &bigtablepb.MutateRowRequest{TableName: table, RowKey: []byte("a-large-one"), Mutations: m}); err != nil {
		t.Fatal(err)
	}
	b := open(t, s.url)
	b.run(chromedp.EmulateViewport(1280, 900))
	b.show(pagesOf(table)[4].hash)
	if text := b.text(); !strings.Contains(text, "a-large-one") || !strings.Contains(text, "begins so") || !strings.Contains(text, "100 MiB") {
		t.Errorf("%.2000s", text)
	}
	b.shot("large-value")
	if size := b.resident(); size > pageMemory {
		t.Errorf("the pages take %d MiB", size>>20)
	}
	if w := b.wrong(); len(w) > 0 {
		t.Error(w)
	}
}

var (
	manyTables  = flag.Int("console.tables", 500, "tables of TestMany, 10000 in full")
	manyTablets = flag.Int("console.tablets", 1000, "tablets of a table of TestMany, 100000 in full")
)

// pageLimit is how long a page may take until all that it asks for is shown.
const pageLimit = time.Second

// pageMemory is how many bytes the browser's processes of pages may have for themselves.
const pageMemory = 160 << 20

// TestMany looks at a server with many tables, a table of many tablets, and rows of many
// cells: each page is there in time, and the browser stays small.
func TestMany(t *testing.T) {
	browser(t)
	zookeeper := loopback.Addr(t)
	s := start(t, "--emulator", "--memory", "2GiB", "--hbase-listen", loopback.Addr(t), "--hbase-zookeeper-listen", zookeeper, "--hbase-instance", "my-project/my-instance")
	table := s.fill()
	for i := range *manyTables {
		s.post("/v2/"+instance+"/tables", object{"tableId": fmt.Sprintf("table-%05d", i), "table": object{"columnFamilies": object{"f": object{}}}})
	}
	splits := make([][]byte, *manyTablets-1)
	for i := range splits {
		splits[i] = fmt.Appendf(nil, "%06d", i)
	}
	// Bigtable's API takes 10,000 splits at most, HBase's any number.
	logrus.SetOutput(io.Discard)
	if err := gohbase.NewAdminClient(zookeeper).CreateTable(hrpc.NewCreateTable(t.Context(), []byte("split"), map[string]map[string]string{"f": nil}, hrpc.SplitKeys(splits))); err != nil {
		t.Fatal(err)
	}
	for s.unserved() > 0 {
		time.Sleep(time.Second)
	}
	for i := range 1000 {
		var ms []object
		for j := range 40 {
			ms = append(ms, object{"setCell": object{"familyName": "f", "columnQualifier": fmt.Appendf(nil, "q%02d", j), "timestampMicros": "1000", "value": []byte("a value of some length")}})
		}
		s.post("/v2/"+table+":mutateRow", object{"rowKey": fmt.Appendf(nil, "a%05d", i), "mutations": ms})
	}
	// Documents that are left, which a browser keeps for its Back button, and processes that
	// it starts ahead are no part of what a page takes.
	b := open(t, s.url, chromedp.Flag("disable-features", "site-per-process,Translate,BlinkGenPropertyTrees,BackForwardCache,SpareRendererForSitePerProcess"))
	b.run(chromedp.EmulateViewport(1280, 900))
	tablets := fmt.Sprint(*manyTablets)
	if *manyTablets >= 1000 {
		tablets = fmt.Sprintf("%d,%03d", *manyTablets/1000, *manyTablets%1000)
	}
	pages := append(pagesOf(table), view{"split", "#/table/" + strings.ReplaceAll(instance+"/tables/split", "/", "%2F"), tablets},
		view{"tablets of split", "#/tablets/" + strings.ReplaceAll(instance+"/tables/split", "/", "%2F"), "1 to 50 of " + tablets})
	for _, p := range pages {
		if p.name == "data" || p.name == "tablets" {
			p.want = ""
		}
		var took time.Duration
		for range 3 { // the machine may do other things
			begun := time.Now()
			b.show(p.hash)
			if took = time.Since(begun); took < pageLimit {
				break
			}
		}
		t.Logf("%s: %v", p.name, took.Round(time.Millisecond))
		if text := b.text(); took > pageLimit || !strings.Contains(text, p.want) {
			t.Errorf("%s after %v, or without %q: %.500s", p.name, took, p.want, text)
		}
		b.shot("many-" + strings.ReplaceAll(p.name, " ", "-"))
	}
	// Of many tables, those are offered whose names have what is typed.
	for _, page := range []string{"keys", "tablets"} {
		b.show("#/" + page)
		var hash string
		b.eval(`const field = [...document.querySelectorAll("label.field")].find((x) => x.firstChild.textContent === "Table").querySelector("input");
			const type = async (text) => { field.focus(); field.value = text; field.dispatchEvent(new Event("input", { bubbles: true })); await new Promise((r) => setTimeout(r, 100)); };
			await type("-00321");
			const offered = [...document.querySelectorAll("#tables option")].map((x) => x.value);
			if (offered.length !== 1) throw new Error(offered.join());
			await type(offered[0]);
			return location.hash`, &hash)
		if !strings.HasPrefix(hash, "#/"+page+"/") || !strings.HasSuffix(hash, "table-00321") {
			t.Errorf("%s: the address is %s", page, hash)
		}
	}
	// In one document, as a caller goes around: what a page had is given back by the next.
	var nodes, listeners [3]int64
	for i := range nodes {
		for _, p := range pages {
			b.eval(fmt.Sprintf(`location.hash = %q; await new Promise((r) => setTimeout(r, 50))`, p.hash), nil)
			b.settle()
		}
		// As many rows as can be asked for.
		b.eval(fmt.Sprintf(`location.hash = %q; await new Promise((r) => setTimeout(r, 50))`, pagesOf(table)[4].hash), nil)
		b.await(`document.querySelector("form button[type=submit]")`)
		b.settle()
		b.eval(`const l = [...document.querySelectorAll("label.field")].find((x) => x.firstChild.textContent === "Rows on a page").querySelector("select"); l.value = "200"; l.dispatchEvent(new Event("input", { bubbles: true }))`, nil)
		b.run(chromedp.Click(`form button[type=submit]`))
		b.await(`document.body.innerText.includes("The first 300 of 8,")`)
		nodes[i], listeners[i] = b.collect()
	}
	if nodes[2] > nodes[1]*5/4 || listeners[2] > listeners[1]*5/4 {
		t.Errorf("after each round, %d nodes and %d listeners are held", nodes, listeners)
	}
	size := b.resident()
	t.Logf("the pages take %d MiB, with %d nodes and %d listeners", size>>20, nodes[2], listeners[2])
	if size > pageMemory {
		t.Errorf("the pages take %d MiB", size>>20)
	}
	if w := b.wrong(); len(w) > 0 {
		t.Error(w)
	}
}

// unserved returns how many tablets of all tables are not served yet.
func (s *server) unserved() (n int) {
	s.t.Helper()
	resp, err := http.Get(s.url + "/admin/tables")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var all struct{ Tables []struct{ Unserved int } }
	if err := json.NewDecoder(resp.Body).Decode(&all); err != nil || resp.StatusCode == http.StatusOK && len(all.Tables) == 0 {
		s.t.Fatalf("%s: %v", resp.Status, err)
	}
	if resp.StatusCode != http.StatusOK {
		return 1 // a server that opens many tablets may be late
	}
	for _, t := range all.Tables {
		n += t.Unserved
	}
	return n
}

// collect collects the page's garbage, and returns how many nodes and listeners are held.
func (b *tab) collect() (nodes, listeners int64) {
	b.t.Helper()
	b.run(heapprofiler.CollectGarbage(), chromedp.ActionFunc(func(ctx context.Context) (err error) {
		_, nodes, listeners, err = memory.GetDOMCounters().Do(ctx)
		return err
	}))
	return nodes, listeners
}

// resident returns how much memory the processes of the pages have for themselves.
func (b *tab) resident() (sum int64) {
	b.t.Helper()
	for _, dir := range processesOf(chromedp.FromContext(b).Browser.Process().Pid) {
		if line, err := os.ReadFile(filepath.Join(dir, "cmdline")); err != nil || !strings.Contains(string(line), "--type=renderer") {
			continue
		}
		status, _ := os.ReadFile(filepath.Join(dir, "status"))
		for l := range strings.SplitSeq(string(status), "\n") {
			var kib int64
			if n, _ := fmt.Sscanf(l, "RssAnon: %d kB", &kib); n == 1 {
				sum += kib << 10
			}
		}
	}
	if sum == 0 {
		b.t.Fatal("no process of a page was found")
	}
	return sum
}

// processesOf returns the directories below /proc of a process and of all that descend from it.
func processesOf(ancestor int) (dirs []string) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		if dir == fmt.Sprintf("/proc/%d", ancestor) || under(dir, ancestor) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// runs tells whether a process has not ended.
func runs(dir string) bool {
	state, _, ok := stat(dir)
	return ok && state != 'Z'
}

// stat returns the state of a process, and the parent that it has.
func stat(dir string) (state byte, parent int, ok bool) {
	text, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, 0, false
	}
	_, err = fmt.Sscanf(string(text[bytes.LastIndexByte(text, ')')+2:]), "%c %d", &state, &parent)
	return state, parent, err == nil
}

// under tells whether a process descends from another.
func under(dir string, ancestor int) bool {
	for {
		_, parent, ok := stat(dir)
		if parent == ancestor || !ok || parent <= 1 {
			return ok && parent == ancestor
		}
		dir = fmt.Sprintf("/proc/%d", parent)
	}
}

// TestDeadServer looks at a cluster, by a tablet server and by a gateway, while another
// tablet server does not answer: pages say so, and do not wait for it.
func TestDeadServer(t *testing.T) {
	browser(t)
	exe := os.Getenv("CONFORMANCE_TRESTLE")
	if exe == "" {
		t.Skip("NOT TESTED: CONFORMANCE_TRESTLE does not name a program (make console)")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := target.StartCluster(ctx, target.ClusterOptions{Binary: exe, Dir: t.TempDir(), Servers: 2, Gateways: 1, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Stop(20 * time.Second) }()
	s := &server{t: t, url: "http://" + c.HTTP[0]}
	s.fill()
	b := open(t, s.url)
	b.run(chromedp.EmulateViewport(1280, 900))
	for _, at := range []int{0, 2} {
		b.origin = "http://" + c.HTTP[at]
		b.show("#/")
		if text := b.text(); !strings.Contains(text, "measures") || !strings.Contains(text, "server-2") || strings.Contains(text, "does not answer") {
			t.Errorf("by process %d: %s", at, text)
		}
	}
	b.wrong()
	pid := c.Pid(1)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	for _, at := range []int{0, 2} {
		b.origin = "http://" + c.HTTP[at]
		for _, p := range []string{"#/", "#/tablets"} {
			begun := time.Now()
			b.show(p)
			took := time.Since(begun)
			if text := b.text(); !strings.Contains(text, `tablet server "server-2" at `) || !strings.Contains(text, "has not answered within 3s") || took > 10*time.Second {
				t.Errorf("%s by process %d after %v: %s", p, at, took, text)
			}
			// How much it has is not known.
			var figures string
			b.eval(`return [...[...document.querySelectorAll('[aria-label="Tablet servers"] tbody tr')].find((x) => x.innerText.includes("server-2")).querySelectorAll("td.num")].map((x) => x.innerText.trim()).join("")`, &figures)
			if figures == "" || strings.Trim(figures, "–") != "" {
				t.Errorf("%s by process %d: the server has %q", p, at, figures)
			}
			for _, c := range b.cut() {
				t.Errorf("%s by process %d: cut off: %s", p, at, c)
			}
			t.Logf("%s by process %d: %v", p, at, took.Round(time.Millisecond))
			b.shot(fmt.Sprintf("dead-%d-%s", at, strings.Trim(p, "#/")))
		}
	}
	if w := refusals(b.wrong(), "503 /admin/tables", "503 /admin/tablets"); len(w) > 0 {
		t.Error(w)
	}
}
