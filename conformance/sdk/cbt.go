package sdk

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// A step is one call of the cbt CLI. Steps build on each other.
type step struct {
	name string
	args string // separated by spaces; a quoted part stays together
	// want must match the output ("" matches all). With a leading "!" the
	// command must fail and the rest match.
	want string
}

const cbtInstance = "cbtinst"

var cbtSteps = []step{
	{"createinstance", "createinstance cbtinst 'Instance of cbt' cbtcluster us-central1-b 1 SSD", ""},
	{"listinstances", "listinstances", `cbtinst\s+Instance of cbt`},
	{"listclusters", "listclusters", "cbtcluster"},
	{"createcluster", "createcluster cbtcluster2 us-east1-c 1 SSD", ""},
	{"updatecluster", "updatecluster cbtcluster num-nodes=2", ""},
	{"listclusters/both", "listclusters", "(?s)cbtcluster.*cbtcluster2"},
	{"deletecluster", "deletecluster cbtcluster2", ""},
	{"createtable", "createtable t1", ""},
	{"createtable/families+splits", "createtable t2 families=f1:maxage=10d,f2:maxversions=3 splits=car,key", ""},
	{"createtable/exists", "createtable t1", "!AlreadyExists"},
	{"ls", "ls", `(?s)t1.*t2`},
	{"ls/table", "ls t2", `(?s)f1\s+age.*f2\s+versions`},
	{"createfamily", "createfamily t1 fam1", ""},
	{"createfamily/second", "createfamily t1 fam2", ""},
	{"createfamily/exists", "createfamily t1 fam1", "!AlreadyExists"},
	{"setgcpolicy/versions", "setgcpolicy t1 fam1 maxversions=2", ""},
	{"setgcpolicy/or", "setgcpolicy t1 fam1 '(maxage=1d or maxversions=5)'", ""},
	{"setgcpolicy/never", "setgcpolicy t1 fam1 never", ""},
	{"ls/policies", "ls t1", "fam1"},
	{"set", "set t1 r1 fam1:q1=hello", ""},
	{"set/timestamps", "set t1 r1 fam1:q1=old@1000 fam1:q2=x@2000", ""},
	{"set/unknown-family", "set t1 r1 nofam:q=v", "!(?i)notfound|not found"},
	{"lookup", "lookup t1 r1", "(?s)hello.*old"},
	{"lookup/cells", "lookup t1 r1 cells-per-column=1", "hello"},
	{"lookup/columns", "lookup t1 r1 columns=fam1:q2", "fam1:q2"},
	{"lookup/missing-row", "lookup t1 nosuch", ""},
	{"lookup/missing-table", "lookup nosuch r1", "!NotFound"},
	{"import", "import t1 {csv}", "(?i)done|rows"},
	{"import/workers", "import t1 {csv} column-family=fam1 batch-size=2 workers=2", "(?i)done|rows"},
	{"count", "count t1", "^4"},
	{"read", "read t1", "(?s)r1.*rk1.*rk2.*rk3"},
	{"read/range", "read t1 start=rk2 end=rk3", "(?s)^-+\nrk2\n"},
	{"read/prefix+count", "read t1 prefix=rk count=1", "(?s)^-+\nrk1\n"},
	{"read/regex", "read t1 regex=rk.*", "(?s)rk1.*rk3"},
	{"read/columns", "read t1 columns=fam1:colB", "colB"},
	{"deletecolumn", "deletecolumn t1 r1 fam1 q2", ""},
	{"lookup/deleted-column", "lookup t1 r1 columns=fam1:q2", ""},
	{"deleterow", "deleterow t1 rk1", ""},
	{"count/after", "count t1", "^3"},
	{"waitforreplication", "waitforreplication t1", ""},
	{"createappprofile/any", "createappprofile cbtinst ap1 desc route-any", ""},
	{"createappprofile/single", "createappprofile cbtinst ap2 desc route-to=cbtcluster transactional-writes=true", ""},
	{"getappprofile", "getappprofile cbtinst ap1", "ap1"},
	{"listappprofile", "listappprofile cbtinst", "(?s)ap1.*ap2"},
	{"updateappprofile", "updateappprofile cbtinst ap1 'other words' route-any", ""},
	{"read/app-profile", "read t1 app-profile=ap1 prefix=r1", "r1"},
	{"deleteappprofile", "deleteappprofile cbtinst ap1", ""},
	{"createsnapshot", "createsnapshot cbtcluster s1 t1 ttl=1d", ""},
	{"listsnapshots", "listsnapshots cbtcluster", "s1"},
	{"getsnapshot", "getsnapshot cbtcluster s1", "s1"},
	{"createtablefromsnapshot", "createtablefromsnapshot t3 cbtcluster s1", ""},
	{"deletesnapshot", "deletesnapshot cbtcluster s1", ""},
	{"deletefamily", "deletefamily t1 fam2", ""},
	{"deleteallrows", "deleteallrows t1", ""},
	{"count/empty", "count t1", "^0"},
	{"deletetable", "deletetable t1", ""},
	{"deletetable/missing", "deletetable t1", "!NotFound"},
	{"deleteinstance", "deleteinstance cbtinst", ""},
	{"listinstances/after", "listinstances", ""},
}

const cbtCSV = ",fam1,fam1,fam2\n,colA,colB,colA\nrk1,a1,b1,c1\nrk2,a2,,c2\nrk3,,b3,\n"

// CBT runs the steps with the cbt binary against the server at addr.
func CBT(ctx context.Context, binary, addr, dir string, each func(Result)) ([]Result, error) {
	csv := filepath.Join(dir, "in.csv")
	if err := os.WriteFile(csv, []byte(cbtCSV), 0o600); err != nil {
		return nil, err
	}
	var results []Result
	for _, s := range cbtSteps {
		r, err := s.run(ctx, binary, addr, dir, csv)
		if err != nil {
			return results, err
		}
		results = append(results, r)
		if each != nil {
			each(r)
		}
	}
	return results, nil
}

var word = regexp.MustCompile(`'[^']*'|\S+`)

// noise is what cbt prints besides the answer.
var noise = regexp.MustCompile(`(?m)^.*flag unset.*\n?`)

func (s step) run(ctx context.Context, binary, addr, dir, csv string) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	args := []string{"-project", Project, "-instance", cbtInstance}
	for _, a := range word.FindAllString(s.args, -1) {
		args = append(args, strings.ReplaceAll(strings.Trim(a, "'"), "{csv}", csv))
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), "BIGTABLE_EMULATOR_HOST="+addr, "HOME="+dir)
	out, err := cmd.CombinedOutput()
	got := noise.ReplaceAllString(string(out), "")
	want, mustFail := strings.CutPrefix(s.want, "!")
	r := Result{Name: s.name, Outcome: "pass"}
	if (err != nil) != mustFail || !regexp.MustCompile(want).MatchString(got) {
		r.Outcome = "fail"
		if len(got) > 300 {
			got = got[:300]
		}
		r.Why = fmt.Sprintf("cbt %s: %v: %q, want %q", s.args, err, got, s.want)
	}
	return r, nil
}
