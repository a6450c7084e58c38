package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	btadmin "cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/iam/admin/apiv1/adminpb"
	"cloud.google.com/go/iam/apiv1/iampb"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/genproto/googleapis/type/expr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/trestledb/trestle/gateway/auth/servertls"
)

// iamFlags are the flags of `trestle iam`.
type iamFlags struct {
	*pflag.FlagSet
	login
	server, dataDir, tokenURI string
	plaintext, json           bool
	timeout                   time.Duration

	project, account, display, out string
	member, role, condition        string
}

// An iamVerb is a command below `trestle iam`.
type iamVerb struct {
	group string
	use   string // its name, and that of its argument
	help  string
	flags string // that it has, beside those of every verb
	run   func(ctx context.Context, c *grpc.ClientConn, f *iamFlags, arg string, out io.Writer) error
}

var iamVerbs = []iamVerb{
	{"service-accounts", "create ID", "make a service account in --project", "project display-name", createAccount},
	{"service-accounts", "list", "list the service accounts of --project", "project", listAccounts},
	{"service-accounts", "delete EMAIL", "delete a service account with its keys", "", deleteAccount},
	{"keys", "create", "make a key of --service-account and write it to --out", "service-account out", createKey},
	{"keys", "list", "list the keys of --service-account", "service-account", listKeys},
	{"keys", "delete KEY_ID", "delete a key of --service-account", "service-account", deleteKey},
	{"policy", "get RESOURCE", "print the policy of projects/P, or of an instance, table, view or backup by its full name", "", getPolicy},
	{"policy", "add-binding RESOURCE", "give --role to --member", "member role condition", addBinding},
	{"policy", "remove-binding RESOURCE", "take --role from --member", "member role condition", removeBinding},
}

const iamHelp = `Manages who may do what: service accounts, their keys, and policies. It asks the
server --server, as whoever --credentials say, or works on the data directory of
a server that is stopped: --data-dir.`

// iamCommand manages accounts and policies.
func iamCommand(p *process) *cobra.Command {
	f := &iamFlags{FlagSet: pflag.NewFlagSet("iam", pflag.ContinueOnError)}
	f.SortFlags = false
	every := pflag.NewFlagSet("iam", pflag.ContinueOnError)
	every.SortFlags = false
	every.StringVar(&f.server, "server", "127.0.0.1:8086", "`HOST:PORT` of the server")
	f.flags(every, p)
	every.BoolVar(&f.plaintext, "plaintext", false, "connect without TLS")
	every.StringVar(&f.dataDir, "data-dir", "", "`PATH` of the data directory of a stopped server, instead of --server")
	every.StringVar(&f.tokenURI, "token-uri", "http://127.0.0.1:8087/token", "with --data-dir: `URL` of the token endpoint to write into a new key")
	every.DurationVar(&f.timeout, "timeout", 30*time.Second, "how long to try")
	every.BoolVar(&f.json, "json", false, "print JSON")
	f.StringVar(&f.project, "project", "", "`ID` of a project")
	f.StringVar(&f.account, "service-account", "", "`EMAIL` of a service account")
	f.StringVar(&f.display, "display-name", "", "`TEXT` that tells a new account's purpose")
	f.StringVar(&f.out, "out", "", "`FILE` for a new key, which must not be there yet; standard output if empty")
	f.StringVar(&f.member, "member", "", "user:NAME, serviceAccount:EMAIL, allUsers or allAuthenticatedUsers")
	f.StringVar(&f.role, "role", "", "role, such as roles/bigtable.reader")
	f.StringVar(&f.condition, "condition", "", "`EXPRESSION` that limits a binding to column families: resource.family in [\"a\", \"b\"]")
	iam := p.group("iam", "manage service accounts, keys and policies", iamHelp)
	iam.PersistentFlags().SortFlags = false
	iam.PersistentFlags().AddFlagSet(every)
	groups := map[string]*cobra.Command{}
	for _, v := range iamVerbs {
		if groups[v.group] == nil {
			groups[v.group] = p.group(v.group, "manage "+strings.ReplaceAll(v.group, "-", " "), "")
			iam.AddCommand(groups[v.group])
		}
		own := pflag.NewFlagSet(v.use, pflag.ContinueOnError)
		own.SortFlags = false
		for _, name := range strings.Fields(v.flags) {
			own.AddFlag(f.Lookup(name))
		}
		c := p.verb(v.use, v.help, "", own, func(_ *cobra.Command, args []string) int { return f.run(p, v.run, args) })
		if strings.HasSuffix(v.use, " RESOURCE") {
			completeArg(c, 0, func() (*grpc.ClientConn, error) {
				if f.dataDir != "" {
					return nil, errors.New("--data-dir: a server that is stopped tells nothing")
				}
				return f.dial(f.server, f.plaintext)
			}, resourceArgs)
		}
		groups[v.group].AddCommand(c)
	}
	return iam
}

// run does what a verb does, with its argument if it has one.
func (f *iamFlags) run(p *process, do func(context.Context, *grpc.ClientConn, *iamFlags, string, io.Writer) error, args []string) int {
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout)
	defer cancel()
	conn, closeConn, err := f.connect(ctx)
	if err != nil {
		return p.failed(err)
	}
	err = do(ctx, conn, f, strings.Join(args, ""), p.stdout)
	if err = errors.Join(describe(err), closeConn()); err != nil {
		return p.failed(err)
	}
	return exitOK
}

func env(p *process, name string) string {
	for _, kv := range p.environ {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// describe writes what a server answered as an error of our own.
func describe(err error) error {
	if s, ok := status.FromError(err); ok && err != nil {
		if s.Code() == codes.Unauthenticated {
			return fmt.Errorf("%s; see --credentials", strings.TrimSuffix(s.Message(), "."))
		}
		return fmt.Errorf("%s: %s", s.Code(), s.Message())
	}
	return err
}

// connect returns a connection to the server, or to one of our own over the
// data directory.
func (f *iamFlags) connect(ctx context.Context) (*grpc.ClientConn, func() error, error) {
	if f.dataDir != "" {
		return offline(ctx, f.dataDir, f.tokenURI)
	}
	conn, err := f.dial(f.server, f.plaintext)
	if err != nil {
		return nil, nil, err
	}
	return conn, conn.Close, nil
}

// needs returns an error that names the flags that are empty.
func (f *iamFlags) needs(names ...string) error {
	var errs []error
	for _, n := range names {
		if f.Lookup(n).Value.String() == "" {
			errs = append(errs, fmt.Errorf("--%s is missing", n))
		}
	}
	return errors.Join(errs...)
}

func accountName(email string) string { return "projects/-/serviceAccounts/" + email }

func createAccount(ctx context.Context, c *grpc.ClientConn, f *iamFlags, id string, out io.Writer) error {
	if err := f.needs("project"); err != nil {
		return err
	}
	a, err := adminpb.NewIAMClient(c).CreateServiceAccount(ctx, &adminpb.CreateServiceAccountRequest{Name: "projects/" + f.project, AccountId: id,
		ServiceAccount: &adminpb.ServiceAccount{DisplayName: f.display}})
	switch {
	case err != nil:
		return err
	case f.json:
		return printJSON(out, accountOf(a))
	}
	_, err = fmt.Fprintln(out, a.GetEmail())
	return err
}

// A serviceAccount is one in JSON.
type serviceAccount struct {
	Email       string `json:"email"`
	DisplayName string `json:"display_name"`
	Disabled    bool   `json:"disabled"`
}

func accountOf(a *adminpb.ServiceAccount) serviceAccount {
	return serviceAccount{a.GetEmail(), a.GetDisplayName(), a.GetDisabled()}
}

func listAccounts(ctx context.Context, c *grpc.ClientConn, f *iamFlags, _ string, out io.Writer) error {
	if err := f.needs("project"); err != nil {
		return err
	}
	all := []serviceAccount{}
	req := &adminpb.ListServiceAccountsRequest{Name: "projects/" + f.project, PageSize: 100}
	for {
		r, err := adminpb.NewIAMClient(c).ListServiceAccounts(ctx, req)
		if err != nil {
			return err
		}
		for _, a := range r.GetAccounts() {
			all = append(all, accountOf(a))
		}
		if req.PageToken = r.GetNextPageToken(); req.PageToken == "" {
			break
		}
	}
	if f.json {
		return printJSON(out, map[string]any{"service_accounts": all})
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "EMAIL\tDISPLAY NAME\tDISABLED")
	for _, a := range all {
		fmt.Fprintf(w, "%s\t%s\t%v\n", a.Email, a.DisplayName, a.Disabled)
	}
	return w.Flush()
}

func deleteAccount(ctx context.Context, c *grpc.ClientConn, _ *iamFlags, email string, _ io.Writer) error {
	_, err := adminpb.NewIAMClient(c).DeleteServiceAccount(ctx, &adminpb.DeleteServiceAccountRequest{Name: accountName(email)})
	return err
}

func createKey(ctx context.Context, c *grpc.ClientConn, f *iamFlags, _ string, out io.Writer) error {
	if err := f.needs("service-account"); err != nil {
		return err
	}
	if f.out != "" {
		if _, err := os.Stat(f.out); err == nil {
			return fmt.Errorf("%s is there already", f.out)
		}
	}
	k, err := adminpb.NewIAMClient(c).CreateServiceAccountKey(ctx, &adminpb.CreateServiceAccountKeyRequest{Name: accountName(f.account)})
	if err != nil {
		return err
	}
	if f.out == "" {
		_, err = out.Write(k.GetPrivateKeyData())
		return err
	}
	if err := servertls.WriteFile(f.out, k.GetPrivateKeyData()); err != nil {
		return fmt.Errorf("write the key %s, which nobody has now: %w", k.GetName(), err)
	}
	if f.json {
		return printJSON(out, map[string]string{"key": k.GetName(), "file": absolute(f.out)})
	}
	fmt.Fprintf(out, "%s\n\nexport GOOGLE_APPLICATION_CREDENTIALS=%s\n", k.GetName(), absolute(f.out))
	return nil
}

func listKeys(ctx context.Context, c *grpc.ClientConn, f *iamFlags, _ string, out io.Writer) error {
	if err := f.needs("service-account"); err != nil {
		return err
	}
	r, err := adminpb.NewIAMClient(c).ListServiceAccountKeys(ctx, &adminpb.ListServiceAccountKeysRequest{Name: accountName(f.account)})
	if err != nil {
		return err
	}
	type key struct {
		ID      string    `json:"id"`
		Created time.Time `json:"created"`
	}
	all := []key{}
	for _, k := range r.GetKeys() {
		all = append(all, key{lastPart(k.GetName()), k.GetValidAfterTime().AsTime()})
	}
	if f.json {
		return printJSON(out, map[string]any{"keys": all})
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KEY ID\tCREATED")
	for _, k := range all {
		fmt.Fprintf(w, "%s\t%s\n", k.ID, k.Created.Format(time.RFC3339))
	}
	return w.Flush()
}

func deleteKey(ctx context.Context, c *grpc.ClientConn, f *iamFlags, id string, _ io.Writer) error {
	if err := f.needs("service-account"); err != nil {
		return err
	}
	_, err := adminpb.NewIAMClient(c).DeleteServiceAccountKey(ctx, &adminpb.DeleteServiceAccountKeyRequest{Name: accountName(f.account) + "/keys/" + id})
	return err
}

// A policyClient is the service that keeps the policies of some resources.
type policyClient interface {
	GetIamPolicy(ctx context.Context, in *iampb.GetIamPolicyRequest, opts ...grpc.CallOption) (*iampb.Policy, error)
	SetIamPolicy(ctx context.Context, in *iampb.SetIamPolicyRequest, opts ...grpc.CallOption) (*iampb.Policy, error)
}

// policiesOf returns the service that keeps the policy of a resource.
func policiesOf(c *grpc.ClientConn, resource string) policyClient {
	switch parts := strings.Split(resource, "/"); {
	case len(parts) <= 2:
		return iampb.NewIAMPolicyClient(c)
	case len(parts) == 4, strings.Contains(resource, "/logicalViews/"), strings.Contains(resource, "/materializedViews/"):
		return btadmin.NewBigtableInstanceAdminClient(c)
	}
	return btadmin.NewBigtableTableAdminClient(c)
}

func getPolicy(ctx context.Context, c *grpc.ClientConn, f *iamFlags, resource string, out io.Writer) error {
	p, err := policiesOf(c, resource).GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: resource, Options: &iampb.GetPolicyOptions{RequestedPolicyVersion: 3}})
	if err != nil {
		return err
	}
	if f.json {
		type binding struct {
			Role      string   `json:"role"`
			Members   []string `json:"members"`
			Condition string   `json:"condition,omitempty"`
		}
		all := []binding{}
		for _, b := range p.GetBindings() {
			all = append(all, binding{b.GetRole(), b.GetMembers(), b.GetCondition().GetExpression()})
		}
		return printJSON(out, map[string]any{"bindings": all})
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ROLE\tMEMBER\tCONDITION")
	for _, b := range p.GetBindings() {
		for _, m := range b.GetMembers() {
			fmt.Fprintf(w, "%s\t%s\t%s\n", b.GetRole(), m, b.GetCondition().GetExpression())
		}
	}
	return w.Flush()
}

// changePolicy reads, changes and writes a policy until nobody else comes in
// between.
func changePolicy(ctx context.Context, c *grpc.ClientConn, resource string, change func(*iampb.Policy) error) error {
	s := policiesOf(c, resource)
	for {
		p, err := s.GetIamPolicy(ctx, &iampb.GetIamPolicyRequest{Resource: resource, Options: &iampb.GetPolicyOptions{RequestedPolicyVersion: 3}})
		if err != nil {
			return err
		}
		if err := change(p); err != nil {
			return err
		}
		p.Version = 3
		if _, err = s.SetIamPolicy(ctx, &iampb.SetIamPolicyRequest{Resource: resource, Policy: p}); status.Code(err) != codes.Aborted {
			return err
		}
	}
}

func (f *iamFlags) is(b *iampb.Binding) bool {
	return b.GetRole() == f.role && b.GetCondition().GetExpression() == f.condition
}

func addBinding(ctx context.Context, c *grpc.ClientConn, f *iamFlags, resource string, _ io.Writer) error {
	if err := f.needs("member", "role"); err != nil {
		return err
	}
	return changePolicy(ctx, c, resource, func(p *iampb.Policy) error {
		for _, b := range p.GetBindings() {
			if f.is(b) {
				if !slices.Contains(b.GetMembers(), f.member) {
					b.Members = append(b.Members, f.member)
				}
				return nil
			}
		}
		b := &iampb.Binding{Role: f.role, Members: []string{f.member}}
		if f.condition != "" {
			b.Condition = &expr.Expr{Title: "families", Expression: f.condition}
		}
		p.Bindings = append(p.Bindings, b)
		return nil
	})
}

func removeBinding(ctx context.Context, c *grpc.ClientConn, f *iamFlags, resource string, _ io.Writer) error {
	if err := f.needs("member", "role"); err != nil {
		return err
	}
	return changePolicy(ctx, c, resource, func(p *iampb.Policy) error {
		for i, b := range p.GetBindings() {
			j := slices.Index(b.GetMembers(), f.member)
			if !f.is(b) || j < 0 {
				continue
			}
			if b.Members = slices.Delete(b.Members, j, j+1); len(b.GetMembers()) == 0 {
				p.Bindings = slices.Delete(p.Bindings, i, i+1)
			}
			return nil
		}
		return fmt.Errorf("%s does not have %s on %s with this condition", f.member, f.role, resource)
	})
}
