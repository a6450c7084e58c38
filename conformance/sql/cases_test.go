package sql

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/fault"
)

var (
	casesPath = flag.String("sql.cases", "", "path of googlesql-cases.jsonl")
	only      = flag.String("sql.only", "", "a part of the names of the cases to run, file/name")
	failures  = flag.String("sql.failures", "", "file that is written with each failure")
)

// Floors of what passes, in percent of the cases that apply. They rise when more does.
const (
	coreFloor     = 97
	extFloor      = 90
	statusFloor   = 100
	wordingFloor  = 90
	positionFloor = 90
)

//go:embed testdata/inapplicable.txt
var inapplicable string

// A Case is a line of the file.
type Case struct {
	File, Kind, Class, Name, Parameters, SQL, Expected string
}

// A count is what became of cases.
type count struct{ cases, passed, failed, listed int }

// listed reads inapplicable.txt: == and a reason, then the cases that have it.
func listed(t *testing.T) map[string]string {
	reasons := map[string]string{}
	reason := ""
	for _, line := range strings.Split(inapplicable, "\n") {
		switch line = strings.TrimSpace(line); {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "== "):
			reason = line[3:]
		case reason == "" || reasons[line] != "":
			t.Errorf("inapplicable.txt: %s has no reason, or two", line)
		default:
			reasons[line] = reason
		}
	}
	return reasons
}

var codes = map[fault.Kind]string{fault.Invalid: "invalid_argument", fault.OutOfRange: "out_of_range", fault.NotFound: "not_found",
	fault.Exhausted: "resource_exhausted", fault.Unimplemented: "unimplemented"}

// splitPlace cuts " [at line:column]" off a message.
func splitPlace(s string) (message, place string) {
	if i := strings.LastIndex(s, " [at "); i >= 0 && strings.HasSuffix(s, "]") {
		return s[:i], s[i+1:]
	}
	return s, ""
}

// TestCases runs GoogleSQL's compliance cases.
func TestCases(t *testing.T) {
	if *casesPath == "" {
		t.Skip("NOT TESTED: -sql.cases has no path of googlesql-cases.jsonl")
	}
	f, err := os.Open(*casesPath)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var report strings.Builder
	reasons := listed(t)
	byFile, byClass := map[string]*count{}, map[string]*count{"core": {}, "ext": {}}
	var errs, statuses, wordings, positions, placed int
	seen := map[string]bool{}
	file, db := "", NewDatabase()
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<24)
	for in.Scan() {
		var c Case
		if err := json.Unmarshal(in.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		if c.File != file {
			file, db = c.File, NewDatabase()
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		if c.Kind == "prepare" {
			if err := db.Prepare(ctx, c.SQL); err != nil {
				fmt.Fprintf(&report, "PREPARE %s: %v\n%s\n\n", c.File, err, c.SQL)
			}
			cancel()
			continue
		}
		name := c.File + "/" + c.Name
		seen[name] = true
		if !strings.Contains(name, *only) {
			cancel()
			continue
		}
		if byFile[c.File] == nil {
			byFile[c.File] = &count{}
		}
		o := db.run(ctx, c)
		cancel()
		reason := reasons[name]
		for _, n := range []*count{byFile[c.File], byClass[c.Class]} {
			n.cases++
			switch {
			case reason != "":
				n.listed++
			case o.diff == "":
				n.passed++
			default:
				n.failed++
			}
		}
		switch {
		case reason != "":
			if o.diff == "" {
				t.Errorf("%s passes: take it off testdata/inapplicable.txt (%s)", name, reason)
			}
			continue
		case o.diff != "":
			fmt.Fprintf(&report, "FAIL %s %s: %s\n%s\nEXPECTED %s\n\n", c.Class, name, o.diff, c.SQL, c.Expected)
		}
		if !o.wantError {
			continue
		}
		errs++
		if o.status {
			statuses++
		}
		if o.wording {
			wordings++
		} else {
			fmt.Fprintf(&report, "WORDING %s: %s\n%s\nEXPECTED %s\n\n", name, o.got, c.SQL, c.Expected)
		}
		if o.placed {
			placed++
			if o.position {
				positions++
			} else {
				fmt.Fprintf(&report, "POSITION %s: %s\n%s\nEXPECTED %s\n\n", name, o.got, c.SQL, c.Expected)
			}
		}
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	for name := range reasons {
		if !seen[name] {
			t.Errorf("inapplicable.txt names %s, which is no case", name)
		}
	}
	if *failures != "" {
		if err := os.WriteFile(*failures, []byte(report.String()), 0o666); err != nil {
			t.Error(err)
		}
	}
	fmt.Printf("%-55s %6s %6s %6s %6s\n", "file", "cases", "listed", "passed", "failed")
	for _, name := range slices.Sorted(maps.Keys(byFile)) {
		n := byFile[name]
		fmt.Printf("%-55s %6d %6d %6d %6d\n", name, n.cases, n.listed, n.passed, n.failed)
	}
	floor := func(what string, part, of, least int) {
		if of == 0 {
			return
		}
		fmt.Printf("%-55s %6d of %6d: %.1f %%\n", what, part, of, 100*float64(part)/float64(of))
		if part*100 < least*of {
			t.Errorf("%s: %d of %d, at least %d %% must", what, part, of, least)
		}
	}
	for class, least := range map[string]int{"core": coreFloor, "ext": extFloor} {
		n := byClass[class]
		fmt.Printf("%s: %d cases, %d listed\n", class, n.cases, n.listed)
		floor(class+" cases that apply and pass", n.passed, n.passed+n.failed, least)
	}
	floor("error cases with the status", statuses, errs, statusFloor)
	floor("error cases with the wording", wordings, errs, wordingFloor)
	floor("error cases with the position", positions, placed, positionFloor)
}

// An outcome is what became of one case. diff is empty if it passed.
type outcome struct {
	diff      string
	got       string
	wantError bool
	status    bool
	wording   bool
	placed    bool // the expected error has a place
	position  bool
}

func (d *Database) run(ctx context.Context, c Case) (o outcome) {
	expected := c.Expected
	if i := strings.Index(expected, "\n--\n"); i >= 0 {
		expected = expected[:i]
	}
	want, err := Notation(expected)
	if err != nil {
		return outcome{diff: "notation: " + err.Error()}
	}
	params, err := d.Parameters(ctx, c.Parameters)
	if err != nil {
		return outcome{diff: "parameters: " + err.Error()}
	}
	cols, rows, err := d.Query(ctx, c.SQL, params)
	if want.Code == "" {
		if err != nil {
			return outcome{diff: "error: " + err.Error()}
		}
		return outcome{diff: want.Compare(cols, rows)}
	}
	o = outcome{wantError: true}
	if err == nil {
		o.got = "no error"
		o.diff = "no error, want " + want.Code + ": " + want.Message
		_, place := splitPlace(want.Message)
		o.placed = place != ""
		return o
	}
	var fe *fault.Error
	code := "unknown"
	if errors.As(err, &fe) {
		code = codes[fe.Kind]
	}
	wantText, wantPlace := splitPlace(want.Message)
	text, place := splitPlace(err.Error())
	o.got = code + ": " + err.Error()
	o.status = code == want.Code
	o.wording = text == wantText
	o.placed = wantPlace != ""
	o.position = place == wantPlace
	if !o.status {
		o.diff = "status " + o.got
	}
	return o
}
