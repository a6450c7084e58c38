package sdk

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// A Result is how one test ended.
type Result struct {
	Name string
	// Outcome is pass, fail or skip.
	Outcome string
	// Why is the first complaint of a test that failed.
	Why string
}

// Expectations are read from a list: a test a line, followed by "pass", "skip"
// or "waits for" and what it waits for. A line that starts with # is a comment.
type Expectations map[string]string

const waits = "waits for "

// ReadExpectations reads a list.
func ReadExpectations(path string) (Expectations, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	e := Expectations{}
	in := bufio.NewScanner(f)
	for n := 1; in.Scan(); n++ {
		line := strings.TrimSpace(in.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, want, _ := strings.Cut(line, " ")
		want = strings.TrimSpace(want)
		if want != "pass" && want != "skip" && (!strings.HasPrefix(want, waits) || len(want) == len(waits)) {
			return nil, fmt.Errorf("%s:%d: %q is neither pass, skip nor %q with a feature", path, n, want, waits)
		}
		if e[name] != "" {
			return nil, fmt.Errorf("%s:%d: %s is there twice", path, n, name)
		}
		e[name] = want
	}
	return e, in.Err()
}

// Compare returns what is not as expected, a line each.
func (e Expectations) Compare(results []Result) (news []string) {
	missing := maps.Clone(e)
	for _, r := range results {
		want := e[r.Name]
		delete(missing, r.Name)
		switch {
		case want == "":
			news = append(news, fmt.Sprintf("%s is not in the list; it is: %s %s", r.Name, r.Outcome, r.Why))
		case strings.HasPrefix(want, waits):
			if r.Outcome == "pass" {
				news = append(news, fmt.Sprintf("%s passes, and the list says that it %s: write pass", r.Name, want))
			}
		case want != r.Outcome:
			news = append(news, fmt.Sprintf("%s: want %s, got %s: %s", r.Name, want, r.Outcome, r.Why))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		news = append(news, name+" is in the list and was not run")
	}
	return news
}

// Summary counts outcomes.
func Summary(results []Result) string {
	n := map[string]int{}
	for _, r := range results {
		n[r.Outcome]++
	}
	return fmt.Sprintf("%d passed, %d failed, %d skipped", n["pass"], n["fail"], n["skip"])
}
