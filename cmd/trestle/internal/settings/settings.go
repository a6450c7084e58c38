package settings

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// EnvPrefix begins the name of every environment variable that is read.
const EnvPrefix = "TRESTLE_"

// configFlag names the file. It is no row of the table, as the file cannot
// name itself.
const configFlag = "config"

// A setting is a row of the table.
type setting struct {
	name  string // flag and YAML key
	deflt string
	help  string
	value value
}

// env is the setting's environment variable.
func (s *setting) env() string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

// An Origin says where the value of a setting came from, such as "default",
// "flag --listen", "env TRESTLE_LISTEN" or "file trestle.yaml:3".
type Origin string

// Default is the Origin of what nobody set.
const Default Origin = "default"

// A Set is a resolved configuration.
type Set struct {
	Serve
	Node
	role    Role // empty: no process of a cluster
	rows    []setting
	origins map[string]Origin
}

// A recorder is a flag that only remembers its text: which source wins is not
// known while flags are parsed.
type recorder struct {
	text string
	kind string
}

func (r *recorder) Set(s string) error { r.text = s; return nil }
func (r *recorder) String() string     { return r.text }
func (r *recorder) Type() string       { return cmp.Or(r.kind, "bool") }

// Flags are the settings as command-line flags, not parsed yet.
type Flags struct {
	*pflag.FlagSet
	rows     []setting
	set      *Set
	recorded map[string]*recorder
}

// NewFlags returns the flags of command.
func NewFlags(command string) *Flags {
	set := new(Set)
	return newFlags(command, set, set.Serve.table())
}

// newFlags returns flags for rows, which set the values of set.
func newFlags(command string, set *Set, rows []setting) *Flags {
	f := &Flags{FlagSet: pflag.NewFlagSet(command, pflag.ContinueOnError), set: set, rows: rows, recorded: map[string]*recorder{}}
	f.SortFlags = false
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	set.rows, set.origins = rows, map[string]Origin{}
	f.add(configFlag, "", "YAML file of settings, with the flags' names as keys", "PATH")
	for i := range f.rows {
		s := &f.rows[i]
		f.add(s.name, s.deflt, s.help, s.value.kind)
	}
	return f
}

// every returns all settings that there are.
func every() []setting { return append(new(Serve).table(), new(Node).table()...) }

func (f *Flags) add(name, deflt, help, kind string) {
	r := &recorder{text: deflt, kind: kind}
	f.recorded[name] = r
	flag := f.VarPF(r, name, "", help)
	if kind == "" {
		flag.NoOptDefVal = "true"
	}
}

// IsSetting tells whether a flag is a setting, which the environment and the file
// may give too, or names the file.
func IsSetting(f *pflag.Flag) bool {
	_, ok := f.Value.(*recorder)
	return ok
}

// Load gives each setting its value, by the flags that were parsed and environ in
// the form of os.Environ. The error joins everything that is wrong.
func (f *Flags) Load(environ []string) (*Set, error) {
	var errs []error
	env := map[string]string{}
	for _, kv := range environ {
		if k, v, ok := strings.Cut(kv, "="); ok && strings.HasPrefix(k, EnvPrefix) {
			env[k] = v
		}
	}

	path := env[EnvPrefix+"CONFIG"]
	if f.Changed(configFlag) {
		path = f.recorded[configFlag].text
	}
	var file map[string]fileValue
	if path != "" {
		var err error
		if file, err = readFile(path, f.rows); err != nil {
			errs = append(errs, err)
		}
	}

	known := map[string]bool{EnvPrefix + "CONFIG": true}
	for i := range f.rows {
		s := &f.rows[i]
		known[s.env()] = true
		text, origin := s.deflt, Default
		if v, ok := file[s.name]; ok {
			text, origin = v.text, Origin(fmt.Sprintf("file %s:%d", path, v.line))
		}
		if v, ok := env[s.env()]; ok {
			text, origin = v, Origin("env "+s.env())
		}
		if f.Changed(s.name) {
			text, origin = f.recorded[s.name].text, Origin("flag --"+s.name)
		}
		if err := s.value.set(text); err != nil {
			errs = append(errs, fmt.Errorf("%s (%s): %w", s.name, origin, err))
		}
		f.set.origins[s.name] = origin
	}
	role := f.set.role
	if role == Operator {
		for _, s := range every() {
			known[s.env()] = true
		}
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		if !known[k] && !kubernetes.MatchString(k) {
			errs = append(errs, fmt.Errorf("environment variable %s is not a setting%s", k, suggest(k, known)))
		}
	}
	// What a probe has of the settings is a part: together they need make no sense. To
	// a command that asks a server, or reads a directory, only what leads there matters.
	serves := role != Probe && role != Admin && role != Operator
	if len(errs) == 0 && serves {
		errs = append(errs, f.set.validate()...)
	}
	if len(errs) == 0 && role != "" && (serves || role == Admin && f.set.Origin("etcd") != Default) {
		errs = append(errs, f.set.ValidateNode())
	}
	return f.set, errors.Join(errs...)
}

// kubernetes matches the variables that Kubernetes sets in every container
// for a Service whose name starts with "trestle".
var kubernetes = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_.*)?)?)$`)

// Origin returns where the value of the setting came from.
func (s *Set) Origin(name string) Origin { return s.origins[name] }

// validate checks what no single value shows.
func (s *Set) validate() (errs []error) {
	if s.Temporary && s.Origin("data-dir") != Default {
		errs = append(errs, fmt.Errorf("temporary (%s) and data-dir (%s) exclude each other", s.Origin("temporary"), s.Origin("data-dir")))
	}
	if !s.Insecure && !IsLoopback(s.Listen) && !(s.TLS() && s.AuthOn()) {
		what := "there is neither TLS nor authentication"
		switch {
		case s.TLS():
			what = "there is no authentication (auth)"
		case s.AuthOn():
			what = "there is no TLS (tls-auto or tls-cert)"
		}
		errs = append(errs, fmt.Errorf("listen (%s): others could reach %s, and %s: "+
			"use a loopback address such as 127.0.0.1, or tls-auto with auth, or set insecure to allow it all the same", s.Origin("listen"), s.Listen, what))
	}
	if !s.Insecure && !IsLoopback(s.HBaseListen) && !(s.TLS() && s.AuthOn()) {
		errs = append(errs, fmt.Errorf("hbase-listen (%s): others could reach %s, and there is no TLS with authentication: "+
			"use a loopback address such as 127.0.0.1, or tls-auto with auth, or set insecure to allow it all the same", s.Origin("hbase-listen"), s.HBaseListen))
	}
	if !s.Insecure && !IsLoopback(s.HBaseZK) {
		errs = append(errs, fmt.Errorf("hbase-zookeeper-listen (%s): others could reach %s, and ZooKeeper's protocol has neither TLS nor authentication here: "+
			"use a loopback address such as 127.0.0.1, or set insecure to allow it all the same", s.Origin("hbase-zookeeper-listen"), s.HBaseZK))
	}
	if s.HBaseZK != "" && s.HBaseListen == "" {
		errs = append(errs, fmt.Errorf("hbase-zookeeper-listen (%s) needs hbase-listen", s.Origin("hbase-zookeeper-listen")))
	}
	if project, instance, ok := strings.Cut(s.HBasePlace, "/"); !ok || project == "" || instance == "" || strings.Contains(instance, "/") {
		errs = append(errs, fmt.Errorf("hbase-instance (%s): %q is not of the form PROJECT/INSTANCE", s.Origin("hbase-instance"), s.HBasePlace))
	}
	if !s.Insecure && !IsLoopback(s.HTTPListen) && !s.TLS() {
		errs = append(errs, fmt.Errorf("http-listen (%s): others could reach %s, and there is no TLS: "+
			"use a loopback address such as 127.0.0.1, or set insecure to allow it all the same", s.Origin("http-listen"), s.HTTPListen))
	}
	if (s.TLSCert == "") != (s.TLSKey == "") {
		errs = append(errs, fmt.Errorf("tls-cert (%s) and tls-key (%s) go together", s.Origin("tls-cert"), s.Origin("tls-key")))
	}
	if s.TLSAuto && s.TLSCert != "" {
		errs = append(errs, fmt.Errorf("tls-auto (%s) and tls-cert (%s) exclude each other", s.Origin("tls-auto"), s.Origin("tls-cert")))
	}
	if s.TLSClientCA != "" && !s.TLS() {
		errs = append(errs, fmt.Errorf("tls-client-ca (%s) needs TLS", s.Origin("tls-client-ca")))
	}
	if (s.OIDCIssuer == "") != (s.OIDCAudience == "") {
		errs = append(errs, fmt.Errorf("oidc-issuer (%s) and oidc-audience (%s) go together", s.Origin("oidc-issuer"), s.Origin("oidc-audience")))
	}
	for _, f := range []struct{ name, value string }{{"token-file", s.TokenFile}, {"oidc-issuer", s.OIDCIssuer}, {"tls-client-ca", s.TLSClientCA}, {"oidc-secret-file", s.OIDCSecret}} {
		if f.value != "" && !s.AuthOn() {
			errs = append(errs, fmt.Errorf("%s (%s) needs auth to be on", f.name, s.Origin(f.name)))
		}
	}
	if !IsLoopback(s.DebugListen) {
		errs = append(errs, fmt.Errorf("debug-listen (%s): the profiler is for loopback addresses only, and %s is not one", s.Origin("debug-listen"), s.DebugListen))
	}
	return errs
}

// IsLoopback tells whether only this machine can reach addr. The empty address
// and unix sockets count as such.
func IsLoopback(addr string) bool {
	if addr == "" || strings.Contains(addr, "/") {
		return true
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Print writes the configuration as a YAML file that would produce it, with
// the origin of each value behind it.
func (s *Set) Print(w io.Writer) error {
	width := 0
	lines := make([]string, len(s.rows))
	for i := range s.rows {
		r := &s.rows[i]
		lines[i] = r.name + ": " + quote(r.value.get())
		width = max(width, len(lines[i]))
	}
	for i := range s.rows {
		if _, err := fmt.Fprintf(w, "%-*s  # %s\n", width, lines[i], s.Origin(s.rows[i].name)); err != nil {
			return err
		}
	}
	return nil
}

// Attrs returns name and value of each setting, alternating, for a log line.
func (s *Set) Attrs() []any {
	var out []any
	for i := range s.rows {
		r := &s.rows[i]
		out = append(out, strings.ReplaceAll(r.name, "-", "_"), r.value.get())
	}
	return out
}

// PrintReference writes a YAML file with every setting of the command at its
// default, each explained.
func (f *Flags) PrintReference(w io.Writer) error {
	for i := range f.rows {
		r := &f.rows[i]
		if _, err := fmt.Fprintf(w, "# %s\n# flag --%s, environment %s\n%s: %s\n\n", r.help, r.name, r.env(), r.name, quote(r.deflt)); err != nil {
			return err
		}
	}
	return nil
}

// quote writes s as a YAML scalar. JSON strings are YAML, and plain words stay
// plain.
var plain = regexp.MustCompile(`^[A-Za-z0-9./][-A-Za-z0-9./_:%\[\]]*$`)

func quote(s string) string {
	if plain.MatchString(s) && !strings.HasSuffix(s, ":") {
		return s
	}
	return fmt.Sprintf("%q", s)
}

// A fileValue is a scalar of the file.
type fileValue struct {
	text string
	line int
}

// readFile reads a flat YAML mapping. The error joins everything that is wrong
// with it; the values that are right come back all the same.
func readFile(path string, rows []setting) (map[string]fileValue, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration file: %w", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("read configuration file %s: %w", path, err)
	}
	if len(doc.Content) == 0 { // nothing but comments
		return nil, nil
	}
	m := doc.Content[0]
	if m.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: the file must be a list of \"name: value\" lines", path, m.Line)
	}
	known, foreign := map[string]bool{}, map[string]bool{}
	for i := range rows {
		known[rows[i].name] = true
	}
	// One file can be for all processes of a machine: what only other roles have is
	// not for this one.
	for _, s := range every() {
		foreign[s.name] = !known[s.name]
	}
	var errs []error
	out := map[string]fileValue{}
	for i := 0; i+1 < len(m.Content); i += 2 {
		k, v := m.Content[i], m.Content[i+1]
		fail := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("%s:%d: %s", path, k.Line, fmt.Sprintf(format, args...)))
		}
		_, twice := out[k.Value]
		switch {
		case foreign[k.Value]:
		case !known[k.Value]:
			fail("%q is not a setting%s", k.Value, suggest(k.Value, known))
		case twice:
			fail("%s is set twice, first in line %d", k.Value, out[k.Value].line)
		case v.Kind != yaml.ScalarNode || v.Tag == "!!null":
			fail("%s must be a single value", k.Value)
		default:
			out[k.Value] = fileValue{v.Value, v.Line}
		}
	}
	return out, errors.Join(errs...)
}

// DoubleDash returns the arguments of a command with "-name" written as "--name" for
// each long flag of f, as Google's tools take them. What is the value of the flag
// before it stays as it is, and so does what is behind "--".
func DoubleDash(f *pflag.FlagSet, args []string) []string {
	out := slices.Clone(args)
	for i := 0; i < len(out) && out[i] != "--"; i++ {
		flag, value := FlagAt(f.Lookup, out[i])
		if flag != nil && !strings.HasPrefix(out[i], "--") {
			out[i] = "-" + out[i]
		}
		if value {
			i++
		}
	}
	return out
}

// FlagAt returns the flag that lookup finds for arg, "--name", "-name" or either with
// "=VALUE", nil if arg is none; and whether the next argument is its value.
func FlagAt(lookup func(name string) *pflag.Flag, arg string) (flag *pflag.Flag, valueFollows bool) {
	name, dashed := strings.CutPrefix(arg, "-")
	name, _, inline := strings.Cut(strings.TrimPrefix(name, "-"), "=")
	if !dashed || len(name) < 2 { // one letter is a shorthand
		return nil, false
	}
	flag = lookup(name)
	return flag, flag != nil && !inline && flag.NoOptDefVal == ""
}

// FlagError adds to an error of the parsing of f what the flag may have meant.
// command is whose flags these are.
func FlagError(command string, f *pflag.FlagSet, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	known := map[string]bool{}
	f.VisitAll(func(fl *pflag.Flag) { known["--"+fl.Name] = true })
	name := unknown.GetSpecifiedName()
	if s := unknown.GetSpecifiedShortnames(); s != "" {
		name, _, _ = strings.Cut(s, "=")
	}
	return fmt.Errorf("--%s is not a flag of %s%s", name, command, cmp.Or(Near("--"+name, known), "; --help lists them"))
}

// suggest is Near, or else how to get the list of settings.
func suggest(name string, known map[string]bool) string {
	return cmp.Or(Near(name, known), "; `trestle config --reference` lists them")
}

// Near returns "; did you mean …?" if a known name is near, else nothing.
func Near(name string, known map[string]bool) string {
	best, bestDistance := "", 1+len(name)/3
	for k := range known {
		if d := distance(name, k); d < bestDistance || d == bestDistance && k < best {
			best, bestDistance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", best)
}

// distance is the Levenshtein distance of a and b in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost = 1 + min(diag, row[j], row[j+1])
			}
			diag, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
