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

// gcloudSteps are calls of `gcloud bigtable`, in the form of cbtSteps. They
// build on each other; a step that fails may therefore fail others.
var gcloudSteps = []step{
	{"instances/none", "instances list --format=value(name)", "^$"},
	{"instances/create", "instances create gc-inst --display-name='An instance' --cluster-config=id=gc-one,zone=local-a,nodes=1", "done"},
	{"instances/exists", "instances create gc-inst --display-name='An instance' --cluster-config=id=gc-one,zone=local-a,nodes=1", "!(?i)already exists"},
	{"instances/bad-id", "instances create x --display-name='An instance' --cluster-config=id=gc-one,zone=local-a,nodes=1", `!Length should be between \[6,33\]`},
	{"instances/list", "instances list", `(?s)NAME\s+DISPLAY_NAME\s+STATE.*gc-inst\s+An instance\s+READY`},
	{"instances/describe", "instances describe gc-inst --format=value(displayName,type,state)", `An instance\s+PRODUCTION\s+READY`},
	{"instances/update", "instances update gc-inst --display-name='Another name'", ""},
	{"instances/updated", "instances describe gc-inst --format=value(displayName)", "^Another name"},
	{"instances/missing", "instances describe gc-none", "!NOT_FOUND"},

	{"clusters/create", "clusters create gc-two --instance=gc-inst --zone=local-b --num-nodes=2", "done"},
	{"clusters/list", "clusters list", `(?s)gc-inst\s+gc-one\s+local-a\s+1.*gc-two\s+local-b\s+2`},
	{"clusters/describe", "clusters describe gc-two --instance=gc-inst --format=value(serveNodes,defaultStorageType,state)", `2\s+SSD\s+READY`},
	{"clusters/resize", "clusters update gc-two --instance=gc-inst --num-nodes=3", ""},
	{"clusters/resized", "clusters describe gc-two --instance=gc-inst --format=value(serveNodes)", "^3"},
	{"clusters/autoscale", "clusters update gc-two --instance=gc-inst --autoscaling-min-nodes=1 --autoscaling-max-nodes=4 --autoscaling-cpu-target=50 --autoscaling-storage-target=2560", ""},
	{"clusters/autoscaled", "clusters describe gc-two --instance=gc-inst --format=value(clusterConfig.clusterAutoscalingConfig.autoscalingTargets.cpuUtilizationPercent)", "^50"},
	{"clusters/no-autoscaling", "clusters update gc-two --instance=gc-inst --num-nodes=1 --disable-autoscaling", ""},
	{"clusters/bad-target", "clusters update gc-two --instance=gc-inst --autoscaling-min-nodes=1 --autoscaling-max-nodes=4 --autoscaling-cpu-target=5 --autoscaling-storage-target=2560", "!INVALID_ARGUMENT"},

	{"tables/create", "instances tables create gc-table --instance=gc-inst --column-families=a:maxversions=2||maxage=1d,b --splits=g,p", "Created"},
	{"tables/list", "instances tables list --instances=gc-inst --format=value(name)", "gc-table"},
	{"tables/describe", "instances tables describe gc-table --instance=gc-inst --view=schema --format=value(columnFamilies.a.gcRule.union.rules[0].maxNumVersions,columnFamilies.a.gcRule.union.rules[1].maxAge)", `2\s+86400s`},
	{"tables/describe-full", "instances tables describe gc-table --instance=gc-inst --view=full --format=json(clusterStates)", "gc-one"},
	{"tables/exists", "instances tables create gc-table --instance=gc-inst --column-families=a", "!(?i)already exists"},
	{"tables/protect", "instances tables update gc-table --instance=gc-inst --deletion-protection", ""},
	{"tables/protected", "instances tables delete gc-table --instance=gc-inst", "!FAILED_PRECONDITION"},
	{"tables/unprotect", "instances tables update gc-table --instance=gc-inst --no-deletion-protection", ""},
	{"tables/change-stream", "instances tables update gc-table --instance=gc-inst --change-stream-retention-period=2d", ""},
	{"tables/change-stream-shown", "instances tables describe gc-table --instance=gc-inst --format=value(changeStreamConfig.retentionPeriod)", "^172800s"},
	{"tables/no-change-stream", "instances tables update gc-table --instance=gc-inst --clear-change-stream-retention-period", ""},
	{"tables/add-binding", "instances tables add-iam-policy-binding gc-table --instance=gc-inst --member=user:a@example.com --role=roles/bigtable.reader", `(?s)members.*user:a@example.com.*roles/bigtable.reader`},
	{"tables/get-policy", "instances tables get-iam-policy gc-table --instance=gc-inst --format=value(bindings.role)", "roles/bigtable.reader"},
	{"tables/remove-binding", "instances tables remove-iam-policy-binding gc-table --instance=gc-inst --member=user:a@example.com --role=roles/bigtable.reader", ""},
	{"tables/no-policy", "instances tables get-iam-policy gc-table --instance=gc-inst --format=value(bindings.role)", `^\s*$`},

	{"app-profiles/create", "app-profiles create gc-prof --instance=gc-inst --route-to=gc-one --transactional-writes --description=words --priority=PRIORITY_LOW", "Created app profile"},
	{"app-profiles/list", "app-profiles list --instance=gc-inst --format=value(name)", `(?s)default.*gc-prof`},
	{"app-profiles/describe", "app-profiles describe gc-prof --instance=gc-inst --format=value(description,singleClusterRouting.clusterId,standardIsolation.priority)", `words\s+gc-one\s+PRIORITY_LOW`},
	{"app-profiles/update", "app-profiles update gc-prof --instance=gc-inst --description='other words' --route-any --force", ""},
	{"app-profiles/updated", "app-profiles describe gc-prof --instance=gc-inst --format=json(description,multiClusterRoutingUseAny)", `(?s)other words.*multiClusterRoutingUseAny`},
	{"app-profiles/delete", "app-profiles delete gc-prof --instance=gc-inst --force", "Deleted app profile"},
	{"app-profiles/missing", "app-profiles describe gc-prof --instance=gc-inst", "!NOT_FOUND"},

	{"authorized-views/create", "authorized-views create gc-view --instance=gc-inst --table=gc-table --definition-file={dir}/view.json --pre-encoded", "Created"},
	{"authorized-views/list", "authorized-views list --instance=gc-inst --table=gc-table --format=value(name)", "gc-view"},
	{"authorized-views/describe", "authorized-views describe gc-view --instance=gc-inst --table=gc-table --format=json", `(?s)rowPrefixes.*dXNlcg==`},
	{"authorized-views/update", "authorized-views update gc-view --instance=gc-inst --table=gc-table --definition-file={dir}/view2.json --pre-encoded --no-interactive --ignore-warnings", ""},
	{"authorized-views/updated", "authorized-views describe gc-view --instance=gc-inst --table=gc-table --format=json", "eHg="},
	{"authorized-views/add-binding", "authorized-views add-iam-policy-binding gc-view --instance=gc-inst --table=gc-table --member=user:a@example.com --role=roles/bigtable.reader", "roles/bigtable.reader"},
	{"authorized-views/get-policy", "authorized-views get-iam-policy gc-view --instance=gc-inst --table=gc-table", "roles/bigtable.reader"},
	{"authorized-views/delete", "authorized-views delete gc-view --instance=gc-inst --table=gc-table", "Deleted"},

	{"schema-bundles/create", "schema-bundles create gc-bundle --instance=gc-inst --table=gc-table --proto-descriptors-file={dir}/descriptors.pb", "Created"},
	{"schema-bundles/describe", "schema-bundles describe gc-bundle --instance=gc-inst --table=gc-table", "(?i)proto"},
	{"schema-bundles/delete", "schema-bundles delete gc-bundle --instance=gc-inst --table=gc-table", "Deleted"},

	{"backups/create", "backups create gc-backup --instance=gc-inst --cluster=gc-one --table=gc-table --retention-period=2w", "(?i)creat"},
	{"backups/list", "backups list --instance=gc-inst --cluster=gc-one", "gc-backup"},
	{"backups/describe", "backups describe gc-backup --instance=gc-inst --cluster=gc-one --format=value(sourceTable,state)", "gc-table.*READY"},
	{"backups/update", "backups update gc-backup --instance=gc-inst --cluster=gc-one --retention-period=3w", ""},
	{"backups/copy", "backups copy --source-instance=gc-inst --source-cluster=gc-one --source-backup=gc-backup --destination-instance=gc-inst --destination-cluster=gc-two --destination-backup=gc-copy --retention-period=2w", ""},
	{"backups/copied", "backups describe gc-copy --instance=gc-inst --cluster=gc-two --format=value(state)", "READY"},
	{"backups/add-binding", "backups add-iam-policy-binding gc-backup --instance=gc-inst --cluster=gc-one --member=user:a@example.com --role=roles/bigtable.reader", "roles/bigtable.reader"},
	{"backups/get-policy", "backups get-iam-policy gc-backup --instance=gc-inst --cluster=gc-one", "roles/bigtable.reader"},
	{"backups/restore", "instances tables restore --source-instance=gc-inst --source-cluster=gc-one --source=gc-backup --destination-instance=gc-inst --destination=gc-restored", ""},
	{"backups/restored", "instances tables describe gc-restored --instance=gc-inst --view=schema --format=json(columnFamilies)", `"a"`},
	{"backups/delete", "backups delete gc-backup --instance=gc-inst --cluster=gc-one", "Deleted"},
	{"backups/delete-copy", "backups delete gc-copy --instance=gc-inst --cluster=gc-two", "Deleted"},

	{"logical-views/create", "logical-views create gc-logical --instance=gc-inst --query='SELECT _key FROM `gc-table`'", "Creating logical view gc-logical"},
	{"logical-views/list", "logical-views list --instance=gc-inst --format=value(name)", "gc-logical"},
	{"logical-views/missing", "logical-views describe gc-none --instance=gc-inst", "!NOT_FOUND"},
	{"materialized-views/create", "materialized-views create gc-mat --instance=gc-inst --query='SELECT _key, COUNT(a[\"q\"]) AS n FROM `gc-table` GROUP BY _key'", "Creating materialized view gc-mat"},
	{"materialized-views/list", "materialized-views list --instance=gc-inst --format=value(name)", "gc-mat"},
	{"materialized-views/describe", "materialized-views describe gc-mat --instance=gc-inst --format=value(query)", "COUNT"},
	{"materialized-views/protect", "materialized-views update gc-mat --instance=gc-inst --deletion-protection=true", ""},
	{"materialized-views/protected", "materialized-views delete gc-mat --instance=gc-inst", "!deletion protection"},
	{"materialized-views/unprotect", "materialized-views update gc-mat --instance=gc-inst --deletion-protection=false", ""},
	{"materialized-views/source", "instances tables delete gc-table --instance=gc-inst", "!materialized view"},
	{"materialized-views/delete", "materialized-views delete gc-mat --instance=gc-inst", "(?i)deleted"},
	{"materialized-views/missing", "materialized-views describe gc-none --instance=gc-inst", "!NOT_FOUND"},

	{"hot-tablets/list", "hot-tablets list gc-one --instance=gc-inst", ""},
	{"instances/add-binding", "instances add-iam-policy-binding gc-inst --member=user:b@example.com --role=roles/bigtable.user", `(?s)user:b@example.com.*roles/bigtable.user`},
	{"instances/get-policy", "instances get-iam-policy gc-inst", "roles/bigtable.user"},
	{"instances/set-policy", "instances set-iam-policy gc-inst {dir}/policy.json", "roles/bigtable.viewer"},
	{"instances/set-policy-stale", "instances set-iam-policy gc-inst {dir}/stale.json", "!ABORTED|etag|concurrent"},
	{"instances/remove-binding", "instances remove-iam-policy-binding gc-inst --member=user:c@example.com --role=roles/bigtable.viewer", ""},
	{"operations/list", "operations list --format=value(name)", "operations/"},
	{"operations/of-instance", "operations list --instance=gc-inst --limit=1 --format=value(name)", `^\S+`},
	{"operations/describe", "operations describe {operation}", "done: true"},
	{"operations/missing", "operations describe operations/projects/project/instances/gc-inst/operations/1", "!NOT_FOUND"},

	{"tables/delete", "instances tables delete gc-table --instance=gc-inst", "(?i)deleted"},
	{"tables/deleted", "instances tables describe gc-table --instance=gc-inst", "!NOT_FOUND"},
	{"tables/undelete", "instances tables undelete gc-table --instance=gc-inst", ""},
	{"tables/undeleted", "instances tables describe gc-table --instance=gc-inst --format=value(name)", "gc-table"},
	{"clusters/delete", "clusters delete gc-two --instance=gc-inst", "Deleted cluster"},
	{"instances/delete", "instances delete gc-inst", ""},
	{"instances/deleted", "instances list --format=value(name)", "^$"},
}

// gcloudFiles are what steps refer to as {dir}/name.
var gcloudFiles = map[string]string{
	"view.json":   `{"subsetView":{"rowPrefixes":["dXNlcg=="],"familySubsets":{"a":{"qualifierPrefixes":[""]}}}}`,
	"view2.json":  `{"subsetView":{"rowPrefixes":["eHg="],"familySubsets":{"a":{"qualifierPrefixes":[""]}}}}`,
	"policy.json": `{"bindings":[{"role":"roles/bigtable.viewer","members":["user:c@example.com"]}]}`,
	"stale.json":  `{"bindings":[{"role":"roles/bigtable.viewer","members":["user:d@example.com"]}],"etag":"AAAAAAAAAAE="}`,
}

// A GCloud runs the steps against the REST API at a URL such as
// http://127.0.0.1:8087/v2/.
type GCloud struct {
	Binary, URL string
	// Dir is for files and gcloud's own configuration.
	Dir string
	// Env are further variables. Without one for credentials none are used.
	Env []string
	// Each is told of every result, if not nil.
	Each func(Result)
}

// environ is the environment of gcloud, without what would send it elsewhere.
func (g GCloud) environ() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "CLOUDSDK_") && !strings.HasPrefix(kv, "GOOGLE_") {
			env = append(env, kv)
		}
	}
	env = append(env, "CLOUDSDK_CONFIG="+filepath.Join(g.Dir, "gcloud"), "CLOUDSDK_CORE_PROJECT="+Project, "CLOUDSDK_CORE_DISABLE_PROMPTS=1",
		"CLOUDSDK_CORE_DISABLE_USAGE_REPORTING=1", "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK=1",
		"CLOUDSDK_API_ENDPOINT_OVERRIDES_BIGTABLEADMIN="+strings.TrimSuffix(g.URL, "v2/"))
	if len(g.Env) == 0 {
		env = append(env, "CLOUDSDK_AUTH_DISABLE_CREDENTIALS=true")
	}
	return append(env, g.Env...)
}

// Call runs one command of gcloud and returns what it printed.
func (g GCloud) Call(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, g.Binary, args...)
	cmd.Env = g.environ()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// gcloudWord is a word of a step's line: quotes may be within it.
var gcloudWord = regexp.MustCompile(`(?:'[^']*'|[^'\s])+`)

// Run runs the steps. descriptors are a serialized FileDescriptorSet.
func (g GCloud) Run(ctx context.Context, descriptors []byte) ([]Result, error) {
	for name, text := range gcloudFiles {
		if err := os.WriteFile(filepath.Join(g.Dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(g.Dir, "descriptors.pb"), descriptors, 0o600); err != nil {
		return nil, err
	}
	var results []Result
	operation := ""
	for _, s := range gcloudSteps {
		if err := ctx.Err(); err != nil {
			return results, err
		}
		args := []string{"bigtable"}
		for _, a := range gcloudWord.FindAllString(s.args, -1) {
			args = append(args, strings.NewReplacer("'", "", "{dir}", g.Dir, "{operation}", operation).Replace(a))
		}
		out, err := g.Call(ctx, args...)
		want, mustFail := strings.CutPrefix(s.want, "!")
		r := Result{Name: s.name, Outcome: "pass"}
		if (err != nil) != mustFail || !regexp.MustCompile(want).MatchString(out) {
			r.Outcome = "fail"
			r.Why = fmt.Sprintf("gcloud bigtable %s: %v: %.500q, want %q", s.args, err, out, s.want)
		}
		if s.name == "operations/of-instance" {
			operation = strings.TrimSpace(out)
		}
		results = append(results, r)
		if g.Each != nil {
			g.Each(r)
		}
	}
	return results, nil
}
