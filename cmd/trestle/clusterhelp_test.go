package main

import (
	"maps"
	"strings"
	"testing"
)

// TestClusterHelp: the help of a verb begins with the flags that it has, and has
// none of other verbs.
func TestClusterHelp(t *testing.T) {
	help := func(args ...string) string {
		var out, errs strings.Builder
		if code := run(&process{&out, &errs, nil}, append(append([]string{"trestle", "cluster"}, args...), "--help")); code != exitOK {
			t.Errorf("%v: exit code %d, %s", args, code, &errs)
		}
		return out.String()
	}
	for verb := range maps.Keys(clusterVerbs) {
		got := help(verb)
		own, settings, ok := strings.Cut(got, "\nSettings of every verb")
		if ok == clusterVerbs[verb].alone || !strings.HasPrefix(own, "Usage: trestle cluster "+verb+" ") {
			t.Errorf("%s:\n%s", verb, got)
		}
		for name := range maps.Keys(clusterVerbs) {
			for _, f := range clusterVerbs[name].flags {
				mine := strings.Contains(strings.Join(clusterVerbs[verb].flags, " ")+" ", f+" ")
				if has := strings.Contains(own, "  --"+f+" "); has != mine || strings.Contains(settings, "  --"+f+" ") {
					t.Errorf("%s: --%s is there: %v, want %v\n%s", verb, f, has, mine, got)
				}
			}
		}
		if strings.Contains(own, "--etcd ") || ok && !strings.Contains(settings, "--etcd ") {
			t.Errorf("%s: settings are not last:\n%s", verb, got)
		}
	}
	if all := help(); !strings.Contains(all, "drop-damaged-log LOG/SEGMENT") || !strings.Contains(all, "--etcd ") || !strings.Contains(all, "--pin ") {
		t.Errorf("the help of all:\n%s", all)
	}
}
