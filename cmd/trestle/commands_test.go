package main

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cluster/catalog"
	"github.com/trestledb/trestle/cluster/metastore"
	"github.com/trestledb/trestle/cluster/node"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/engine/metadata"
)

// typed runs a command line in this process.
func typed(args ...string) (stdout, stderr string, code int) {
	var out, errs strings.Builder
	code = run(&process{&out, &errs, nil}, append([]string{"trestle"}, args...))
	return out.String(), errs.String(), code
}

// everyCommand calls each with all commands that are shown, groups too.
func everyCommand(c *cobra.Command, each func(c *cobra.Command, path []string)) {
	for _, v := range c.Commands() {
		if !v.Hidden {
			each(v, strings.Fields(v.CommandPath())[1:])
			everyCommand(v, each)
		}
	}
}

// hasFlag tells whether help explains a flag.
func hasFlag(help, name string) bool {
	return strings.Contains(help, "\n  --"+name+" ") || strings.Contains(help, "\n  --"+name+"\n")
}

// TestHelp: every command has help that fits a terminal, of which its own flags
// come first and the settings last; that of a group lists the verbs.
func TestHelp(t *testing.T) {
	n := 0
	everyCommand(newRoot(&process{io.Discard, io.Discard, nil}), func(c *cobra.Command, path []string) {
		n++
		help, errs, code := typed(append(path, "--help")...)
		if code != exitOK || errs != "" || !strings.HasPrefix(help, "Usage: trestle "+strings.Join(path, " ")) {
			t.Errorf("%v: exit code %d, %s\n%s", path, code, errs, help)
		}
		for _, line := range strings.Split(help, "\n") {
			if utf8.RuneCountInString(line) > 80 && len(strings.Fields(line)) > 2 && path[0] != "bench" {
				t.Errorf("%v: %d columns: %s", path, utf8.RuneCountInString(line), line)
			}
		}
		if again, _, _ := typed(append([]string{"help"}, path...)...); again != help {
			t.Errorf("help %v is not --help:\n%s", path, again)
		}
		for _, v := range verbsOf(c) {
			if !strings.Contains(help, "\n  "+strings.TrimPrefix(v.CommandPath(), c.CommandPath()+" ")) {
				t.Errorf("%v does not list %s:\n%s", path, v.Name(), help)
			}
		}
		own, shared, found := strings.Cut(help, "\nSettings, which")
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			mine, its := hasFlag(own, f.Name), hasFlag(shared, f.Name)
			if setting := settings.IsSetting(f); !f.Hidden && f.Name != "help" && (mine == setting || its != setting) {
				t.Errorf("%v: --%s is a setting: %v; among its own: %v, among settings: %v", path, f.Name, setting, mine, its)
			}
		})
		if found && !strings.Contains(shared, "--config PATH") {
			t.Errorf("%v: no --config\n%s", path, help)
		}
	})
	if n < 50 {
		t.Errorf("there are %d commands", n)
	}
	out, _, _ := typed("tablet", "move", "--help")
	for _, want := range []string{"Usage: trestle tablet move [TABLET] SERVER [flags]\n", "--pin ", "--admin URL", "--etcd URLS", "it acts on the cluster itself"} {
		if !strings.Contains(out, want) {
			t.Errorf("the help of move lacks %q:\n%s", want, out)
		}
	}
	for _, not := range []string{"--store", "--data-dir", "--all"} {
		if hasFlag(out, strings.TrimPrefix(not, "--")) {
			t.Errorf("the help of move has %s", not)
		}
	}
}

// TestJSONFlag: what prints a result has --json, except for what prints another form.
func TestJSONFlag(t *testing.T) {
	var without []string
	everyCommand(newRoot(&process{io.Discard, io.Discard, nil}), func(c *cobra.Command, path []string) {
		if !c.HasSubCommands() && c.Flags().Lookup("json") == nil && c.InheritedFlags().Lookup("json") == nil {
			without = append(without, strings.Join(path, " "))
		}
	})
	want := []string{
		"serve", "tabletserver", "master", "gateway", "dev-cluster", // servers
		"stream",           // lines of JSON
		"log drop-damaged", // asks a person
		"sql",              // --format json
		"config",           // YAML, as --config takes it
		"debug show",       // what a file has, for a person
		"inspect changes",  // a file, for a person who looks into it
		"inspect log",      // likewise
		"inspect sst",      // likewise
		"healthcheck",      // /readyz as it is
		"completion", "help",
	}
	if !slices.Equal(without, want) {
		t.Errorf("without --json are\n%q, want\n%q", without, want)
	}
	out, errs, code := typed("version", "--json")
	var version map[string]string
	if err := json.Unmarshal([]byte(out), &version); err != nil || code != exitOK || version["version"] == "" || version["system"] != runtime.GOOS {
		t.Errorf("%v: %s%s", err, out, errs)
	}
	dir := t.TempDir()
	out, errs, code = typed("cluster", "certs", dir, "server-1", "--json")
	var made struct {
		CA           string
		Certificates []struct{ Name, Cert, Key string }
	}
	if err := json.Unmarshal([]byte(out), &made); err != nil || code != exitOK || len(made.Certificates) != 1 {
		t.Fatalf("%v: %s%s", err, out, errs)
	}
	for _, file := range []string{made.CA, made.Certificates[0].Cert, made.Certificates[0].Key} {
		if b, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(b), "-----BEGIN ") {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestSpellings: what earlier builds called otherwise is refused with the word that
// it is now, which there is.
func TestSpellings(t *testing.T) {
	for old, now := range spellings {
		first, second, _ := strings.Cut(old, " ")
		for _, args := range [][]string{
			append(strings.Fields(old), "DIR", "--yes", "--etcd=http://127.0.0.1:1"),
			append([]string{first, "--etcd", "http://127.0.0.1:1", "--yes", "-table=t"}, append(strings.Fields(second), "DIR")...),
		} {
			_, errs, code := typed(args...)
			if code != exitUsage || errs != "trestle: trestle "+old+" is "+now+" now\n" {
				t.Errorf("%v: exit code %d, %s", args, code, errs)
			}
		}
		words := strings.Fields(now)[1:]
		found := false
		everyCommand(newRoot(&process{io.Discard, io.Discard, nil}), func(_ *cobra.Command, path []string) {
			found = found || slices.Equal(path, slices.DeleteFunc(slices.Clone(words), func(w string) bool { return strings.HasPrefix(w, "-") }))
		})
		if !found {
			t.Errorf("%s leads to %s, which is no command", old, now)
		}
	}
}

// TestCommandOf: flags may stand among the words of a command, whose own flags alone
// are taken with one dash; what is a value, or behind "--", stays as it was typed.
func TestCommandOf(t *testing.T) {
	for line, want := range map[string]string{
		"tablet split --table METADATA --key -wide":      "tablet split | --table METADATA --key -wide",
		"tablet split -table METADATA -key --all":        "tablet split | --table METADATA --key --all",
		"tablet split -key=-wide -wide":                  "tablet split | --key=-wide -wide",
		"tablet flush 1f -json -- -all":                  "tablet flush | 1f --json -- -all",
		"tablet list -wide -help -h":                     "tablet list | --wide --help -h",
		"server --json list":                             "server list | --json",
		"server -timeout list drain --json s":            "server drain | --timeout list --json s",
		"iam -server h:1 policy --role=r get -plaintext": "iam policy get | --server h:1 --role=r --plaintext",
		"cluster -etcd x drain y":                        "cluster drain | -etcd x y",
		"server --nonsense lst x":                        "server lst | --nonsense x",
		"dev-cluster -servers 1 -- -listen x":            "dev-cluster | --servers 1 -- -listen x",
		"log drop-damaged -yes -dir":                     "log drop-damaged | --yes -dir",
		"server list --timeout":                          "server list | --timeout",
		"server --timeout":                               "server | --timeout",
	} {
		c, words, rest := commandOf(newRoot(&process{io.Discard, io.Discard, nil}), strings.Fields(line))
		if got := strings.Join(words, " ") + " | " + strings.Join(settings.DoubleDash(c.Flags(), rest), " "); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
	// This is what lets a flag stand before the verb that it is of.
	value := map[string]string{}
	everyCommand(newRoot(&process{io.Discard, io.Discard, nil}), func(c *cobra.Command, path []string) {
		if len(path) == 1 {
			clear(value) // another group begins
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if was, ok := value[f.Name]; ok && was != f.NoOptDefVal {
				t.Errorf("--%s of %s takes a value, or takes none elsewhere", f.Name, c.CommandPath())
			}
			value[f.Name] = f.NoOptDefVal
		})
	})
}

// askedServer answers requests of commands as an admin service does.
func askedServer(t *testing.T, answer http.HandlerFunc) (url string) {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	return s.URL
}

// TestFlagAsValue: a key that is spelled as the flag of another command is a key.
func TestFlagAsValue(t *testing.T) {
	var asked ops.Selection
	url := askedServer(t, func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		_ = json.NewEncoder(w).Encode(ops.Changed{})
	})
	if _, errs, code := typed("tablet", "-admin", url, "split", "--table", "METADATA", "--key", "-wide"); code != exitOK || asked.Key == nil || *asked.Key != "-wide" {
		t.Errorf("exit code %d, %s, %+v", code, errs, asked)
	}
}

// TestEnded: a command that was not done says what ended it: its time, or an interrupt.
func TestEnded(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT) // which would end the test if no command waited for it
	defer signal.Stop(signals)
	interrupt := false
	url := askedServer(t, func(_ http.ResponseWriter, r *http.Request) {
		if interrupt {
			_ = syscall.Kill(syscall.Getpid(), syscall.SIGINT)
		}
		_, _ = io.Copy(io.Discard, r.Body) // without which nobody sees that the client has gone
		<-r.Context().Done()
	})
	// A cluster whose METADATA nobody serves, as there is neither master nor server.
	e, err := startEtcd(t.TempDir(), "127.0.0.1:0", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	etcd := "http://" + e.Clients[0].Addr().String()
	n, err := node.Join(t.Context(), node.Options{Cluster: "trestle", Etcd: []string{etcd}, TTL: 5 * time.Second, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if _, err := catalog.ClaimIncarnation(t.Context(), n.Lock); err != nil {
		t.Fatal(err)
	}
	root := metadata.Row{Version: 1, Table: metastore.Table, Tablet: 1, Assignment: &metadata.Assignment{State: metadata.Unassigned}}
	if _, err := n.Lock.Put(t.Context(), metastore.RootPrefix+"00", root.Marshal(), 0); err != nil {
		t.Fatal(err)
	}
	// A busy machine may take longer than that to join: those with LIMIT have a longer one then.
	const most = 32 * time.Second
	for _, c := range []struct{ line, want string }{
		{"server list --timeout 100ms --admin " + url, "it was not done within 100ms (--timeout)"},
		{"tablet compact 1f --timeout 100ms --admin " + url, "it was not done within 100ms (--timeout)"},
		{"tablet compact 1f --timeout LIMIT --etcd " + etcd, "it was not done within LIMIT (--timeout)"},
		{"cluster status --timeout LIMIT --etcd " + etcd, "etcd: it was not done within LIMIT (--timeout)"},
		{"server list --timeout 1us --etcd " + etcd, "the lock service, etcd at " + etcd + ", has not answered: it was not done within 1µs (--timeout)"},
	} {
		for limit := time.Second; ; limit *= 2 {
			line, want := strings.ReplaceAll(c.line, "LIMIT", limit.String()), strings.ReplaceAll(c.want, "LIMIT", limit.String())
			_, errs, code := typed(strings.Fields(line)...)
			if code == exitFailure && errs == "trestle: "+want+"\n" {
				break
			}
			if line == c.line || limit == most {
				t.Errorf("%s: exit code %d\n%s\nwant %s", line, code, errs, want)
				break
			}
		}
	}
	interrupt = true
	if _, errs, code := typed("server", "list", "--admin", url); code != exitFailure || errs != "trestle: interrupted\n" {
		t.Errorf("exit code %d, %s", code, errs)
	}
	for after := time.Second; ; after *= 2 {
		timer := time.AfterFunc(after, func() { _ = syscall.Kill(syscall.Getpid(), syscall.SIGINT) })
		_, errs, code := typed("tablet", "compact", "1f", "--etcd", etcd)
		timer.Stop()
		if code == exitFailure && errs == "trestle: interrupted\n" {
			break
		}
		if after == most {
			t.Errorf("exit code %d, %s", code, errs)
			break
		}
	}
}

// TestOperatorEnvironment: what repairs a server, or shows it, works in the server's
// environment.
func TestOperatorEnvironment(t *testing.T) {
	dir := t.TempDir()
	environ := []string{"TRESTLE_LISTEN=0.0.0.0:8086", "TRESTLE_HTTP_LISTEN=0.0.0.0:8087", "TRESTLE_DATA_DIR=" + dir, "TRESTLE_ETCD=http://etcd:2379", "TRESTLE_TLS_CERT=c"}
	for line, want := range map[string]struct {
		code int
		says string
	}{
		"log drop-damaged " + dir:                  {exitFailure, "trestle: "},
		"check " + dir:                             {exitFailure, "trestle: check " + dir},
		"cluster certs " + dir + " a":              {exitOK, ""},
		"cluster status":                           {exitUsage, "etcd (env TRESTLE_ETCD): others could change"},
		"cluster status --insecure --timeout 50ms": {exitFailure, "the lock service, etcd at http://etcd:2379, has not answered"},
		"check --online --store file:///s":         {exitUsage, "etcd (env TRESTLE_ETCD): others could change"},
		"check --listen x " + dir:                  {exitUsage, "--listen is not a flag of trestle check"},
	} {
		var out, errs strings.Builder
		if code := run(&process{&out, &errs, environ}, append([]string{"trestle"}, strings.Fields(line)...)); code != want.code || !strings.Contains(errs.String(), want.says) || strings.Contains(errs.String(), "is not a setting") {
			t.Errorf("%s: exit code %d, want %d\n%s%s", line, code, want.code, out.String(), errs.String())
		}
	}
}

// TestTakes: how many arguments a command takes is what its usage says.
func TestTakes(t *testing.T) {
	for use, want := range map[string][]bool{ // of none, one, two and three
		"version": {true, false, false, false}, "check [DIR]": {true, true, false, false}, "move [TABLET] SERVER": {false, true, true, false},
		"certs DIR NAME...": {false, false, true, true}, "dev-cluster [--] [FLAGS...]": {true, true, true, true}, "drop DIR|LOG...": {false, true, true, true},
	} {
		for n, ok := range want {
			if err := takes(use)(&cobra.Command{Use: use}, make([]string, n)); (err == nil) != ok {
				t.Errorf("%s with %d: %v", use, n, err)
			}
		}
	}
}

// TestUnreachable: a command says whom it could not reach, within its time.
func TestUnreachable(t *testing.T) {
	was := reachLimit
	reachLimit = time.Second
	defer func() { reachLimit = was }()
	for line, want := range map[string]string{
		"tablet list --etcd http://127.0.0.1:1":                                                  "the lock service, etcd at http://127.0.0.1:1, cannot be reached",
		"backup export b e --etcd http://127.0.0.1:1 --store file:///s --export-store file:///e": "the lock service, etcd at http://127.0.0.1:1, cannot be reached",
		"cluster status --etcd http://127.0.0.1:1":                                               "the lock service, etcd at http://127.0.0.1:1, cannot be reached",
		"check --online --store file:///s --etcd http://127.0.0.1:1":                             "the lock service, etcd at http://127.0.0.1:1, cannot be reached",
		"cluster status --etcd http://127.0.0.1:1 --timeout 50ms":                                "etcd at http://127.0.0.1:1, has not answered: it was not done within 50ms (--timeout)",
		"server list --admin http://127.0.0.1:1":                                                 "reach the admin service: ",
	} {
		if _, errs, code := typed(strings.Fields(line)...); code != exitFailure || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d\n%s\nwant %q", line, code, errs, want)
		}
	}
}

// TestMisuse: what cannot be meant is refused before anybody is asked.
func TestMisuse(t *testing.T) {
	for line, want := range map[string]string{
		"tablet":                                           "trestle tablet takes a verb: list, split, merge, move,",
		"tablet splt --table t":                            `there is no verb "splt"; did you mean split?`,
		"server list x":                                    "takes only flags",
		"server drain":                                     "takes SERVER",
		"tablet split":                                     "either by its id TABLET, or by --table and --key",
		"tablet split 1f --table t":                        "either by its id TABLET, or by --table and --key",
		"tablet move server-1":                             "either by its id TABLET, or by --table and --key",
		"tablet move 1 2 3":                                "takes [TABLET] SERVER",
		"tablet move --table t s":                          "give --key",
		"tablet split --table t":                           "give --key",
		"tablet merge 1f --key x":                          "--key goes with --table",
		"tablet compact 1f --all":                          "--all goes with --table",
		"tablet flush --table t":                           "give --key or --all",
		"tablet flush --table t --key k --all":             "--key and --all exclude each other",
		"tablet drop-damaged --table t --key k --object x": "--key is not a flag of trestle tablet drop-damaged",
		"server --json lst":                                `there is no verb "lst"; did you mean list?`,
		"no-help":                                          `"no-help" is not a command`,
		"help tabl":                                        `"tabl" is not a command; did you mean table`,
		"help server lst --json":                           `there is no verb "lst"; did you mean list?`,
		"tablet split 1f --al":                             "--al is not a flag of trestle tablet split",
		"server list --admin http://h:1 --etcd http://127.0.0.1:2": "exclude each other",
		"table list --etcd http://127.0.0.1:2 --credentials /key":  "--credentials and --ca are for an admin service",
		"tablet list --etcd http://etcd:2379":                      "set insecure to allow it",
		"tablet list --http-listen off":                            "so there is no admin service: give --admin, or --etcd",
		"backup export b e --etcd http://127.0.0.1:1":              "needs --store and --export-store",
		"backup import e b --expire 1ms":                           "--expire 1ms",
		"table set-group --table t --group g":                      "takes settings",
		"iam policy gte":                                           "did you mean get?",
		"cluster adopt --done --abandon":                           "exclude each other",
		"log":                                                      "takes a verb: drop-damaged",
		"log drop-damaged 0000000000000006/000000000000013":        "with --etcd and --store",
	} {
		if _, errs, code := typed(strings.Fields(line)...); code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d\n%s\nwant %q", line, code, errs, want)
		}
	}
}
