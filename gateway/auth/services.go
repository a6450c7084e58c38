package auth

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"reflect"
	"slices"
	"strings"

	"cloud.google.com/go/iam/admin/apiv1/adminpb"
	"cloud.google.com/go/iam/apiv1/iampb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/auth/iam"
	"github.com/trestledb/trestle/gateway/auth/jws"
)

// Register adds google.iam.admin.v1.IAM, for service accounts and their keys,
// and google.iam.v1.IAMPolicy, for the policies of projects.
func (a *Auth) Register(r grpc.ServiceRegistrar) {
	r.RegisterService(iamDesc, &accountServer{a: a})
	iampb.RegisterIAMPolicyServer(r, &policyServer{a: a})
}

// iamDesc describes google.iam.admin.v1.IAM, all of whose methods are unary.
// The generated code has one too, but gives it to a *grpc.Server only.
var iamDesc = func() *grpc.ServiceDesc {
	file := adminpb.File_google_iam_admin_v1_iam_proto
	methods := file.Services().ByName("IAM").Methods()
	d := &grpc.ServiceDesc{ServiceName: "google.iam.admin.v1.IAM", HandlerType: (*adminpb.IAMServer)(nil), Metadata: file.Path()}
	server := reflect.TypeFor[adminpb.IAMServer]()
	for i := range methods.Len() {
		name := string(methods.Get(i).Name())
		method, ok := server.MethodByName(name)
		if !ok {
			panic("no method " + name)
		}
		full, request := "/"+d.ServiceName+"/"+name, method.Type.In(1).Elem()
		handler := func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			req := reflect.New(request).Interface()
			if err := decode(req); err != nil {
				return nil, err
			}
			call := func(ctx context.Context, req any) (any, error) {
				out := reflect.ValueOf(srv).MethodByName(name).Call([]reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(req)})
				err, _ := out[1].Interface().(error)
				return out[0].Interface(), err
			}
			if interceptor == nil {
				return call(ctx, req)
			}
			return interceptor(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: full}, call)
		}
		d.Methods = append(d.Methods, grpc.MethodDesc{MethodName: name, Handler: handler})
	}
	return d
}()

// accountServer is google.iam.admin.v1.IAM. What it does not define answers
// UNIMPLEMENTED.
type accountServer struct {
	adminpb.UnimplementedIAMServer
	a *Auth
}

// accountAt returns the account with the given resource name. The caller may
// do to it what it asked for, if it is no root account; only root may change
// those.
func (s *accountServer) accountAt(ctx context.Context, name string, change bool) (*Account, error) {
	rest, ok := strings.CutPrefix(name, "projects/")
	project, rest, ok2 := strings.Cut(rest, "/serviceAccounts/")
	email, _, _ := strings.Cut(rest, "/")
	if !ok || !ok2 || email == "" || strings.Contains(project, "/") {
		return nil, fault.InvalidField("name", "When parsing '%s' : Service account name expected in the form 'projects/<project_id>/serviceAccounts/<email>'.", shorten(name))
	}
	acc, err := s.a.accounts.Get(ctx, email)
	if err == nil && project != "-" && project != acc.Project {
		err = fault.New(fault.NotFound, "Service account not found: %s", shorten(name))
	}
	if err != nil {
		return nil, err
	}
	if c := callOf(ctx); c != nil && change && acc.Root && !c.principal.Root {
		return nil, s.a.denied(c, "Only a root account may change a root account.", "IAM_PERMISSION_DENIED", nil)
	}
	return acc, nil
}

func (a *Account) proto() *adminpb.ServiceAccount {
	return &adminpb.ServiceAccount{Name: a.Name(), ProjectId: a.Project, UniqueId: a.UniqueID, Email: a.Email,
		DisplayName: a.DisplayName, Description: a.Description, Disabled: a.Disabled, Oauth2ClientId: a.UniqueID}
}

func (s *accountServer) CreateServiceAccount(ctx context.Context, req *adminpb.CreateServiceAccountRequest) (*adminpb.ServiceAccount, error) {
	if !isProject(req.GetName()) {
		return nil, fault.InvalidField("name", "When parsing '%s' : Project name expected in the form 'projects/<project_id>'.", shorten(req.GetName()))
	}
	in := req.GetServiceAccount()
	acc, err := s.a.accounts.Create(ctx, strings.TrimPrefix(req.GetName(), "projects/"), req.GetAccountId(), in.GetDisplayName(), in.GetDescription(), false)
	if err != nil {
		return nil, err
	}
	return acc.proto(), nil
}

func (s *accountServer) GetServiceAccount(ctx context.Context, req *adminpb.GetServiceAccountRequest) (*adminpb.ServiceAccount, error) {
	acc, err := s.accountAt(ctx, req.GetName(), false)
	if err != nil {
		return nil, err
	}
	return acc.proto(), nil
}

// ListServiceAccounts returns pages by e-mail; a page token is the last one.
func (s *accountServer) ListServiceAccounts(ctx context.Context, req *adminpb.ListServiceAccountsRequest) (*adminpb.ListServiceAccountsResponse, error) {
	if !isProject(req.GetName()) {
		return nil, fault.InvalidField("name", "When parsing '%s' : Project name expected in the form 'projects/<project_id>'.", shorten(req.GetName()))
	}
	size := int(req.GetPageSize())
	switch {
	case size < 0:
		return nil, fault.InvalidField("page_size", "Error in field 'page_size' : Must not be negative, but found %d", size)
	case size == 0:
		size = 20 // as Google's
	}
	size = min(size, 100)
	all, err := s.a.accounts.List(ctx, strings.TrimPrefix(req.GetName(), "projects/"))
	if err != nil {
		return nil, err
	}
	i, found := slices.BinarySearchFunc(all, req.GetPageToken(), func(a *Account, t string) int { return strings.Compare(a.Email, t) })
	if found {
		i++
	}
	out := &adminpb.ListServiceAccountsResponse{}
	for ; i < len(all) && len(out.Accounts) < size; i++ {
		out.Accounts = append(out.Accounts, all[i].proto())
	}
	if i < len(all) {
		out.NextPageToken = all[i-1].Email
	}
	return out, nil
}

func (s *accountServer) DeleteServiceAccount(ctx context.Context, req *adminpb.DeleteServiceAccountRequest) (*emptypb.Empty, error) {
	acc, err := s.accountAt(ctx, req.GetName(), true)
	if err != nil {
		return nil, err
	}
	if err := s.keepRoot(ctx, acc, ""); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, s.a.accounts.Delete(ctx, acc.Email)
}

// keepRoot refuses to take away the last key by which a root could log in: of
// acc, or only the key without.
func (s *accountServer) keepRoot(ctx context.Context, acc *Account, without string) error {
	if !acc.Root {
		return nil
	}
	all, err := s.a.accounts.List(ctx, "")
	if err != nil {
		return err
	}
	for _, other := range all {
		if !other.Root || other.Disabled || other.Email == acc.Email && without == "" {
			continue
		}
		for _, k := range other.Keys {
			if other.Email != acc.Email || k.ID != without {
				return nil
			}
		}
	}
	return fault.New(fault.FailedPrecondition, "This is the last key of a root account: nobody could log in as root any more")
}

func (s *accountServer) PatchServiceAccount(ctx context.Context, req *adminpb.PatchServiceAccountRequest) (*adminpb.ServiceAccount, error) {
	in := req.GetServiceAccount()
	acc, err := s.accountAt(ctx, in.GetName(), true)
	if err != nil {
		return nil, err
	}
	paths := req.GetUpdateMask().GetPaths()
	if len(paths) == 0 {
		return nil, fault.InvalidField("update_mask", "A non-empty 'update_mask' must be specified")
	}
	if len(in.GetDisplayName()) > 100 || len(in.GetDescription()) > 256 {
		return nil, fault.InvalidField("service_account", "The display name may have 100 bytes, the description 256")
	}
	acc, err = s.a.accounts.Update(ctx, acc.Email, func(a *Account) error {
		for _, p := range paths {
			switch p {
			case "display_name":
				a.DisplayName = in.GetDisplayName()
			case "description":
				a.Description = in.GetDescription()
			default:
				return fault.InvalidField("update_mask", "Error in field 'update_mask' : '%s' cannot be updated", shorten(p))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return acc.proto(), nil
}

func (s *accountServer) EnableServiceAccount(ctx context.Context, req *adminpb.EnableServiceAccountRequest) (*emptypb.Empty, error) {
	return s.disable(ctx, req.GetName(), false)
}

func (s *accountServer) DisableServiceAccount(ctx context.Context, req *adminpb.DisableServiceAccountRequest) (*emptypb.Empty, error) {
	return s.disable(ctx, req.GetName(), true)
}

func (s *accountServer) disable(ctx context.Context, name string, disabled bool) (*emptypb.Empty, error) {
	acc, err := s.accountAt(ctx, name, true)
	if err != nil {
		return nil, err
	}
	if disabled {
		if err := s.keepRoot(ctx, acc, ""); err != nil {
			return nil, err
		}
	}
	_, err = s.a.accounts.Update(ctx, acc.Email, func(a *Account) error {
		a.Disabled = disabled
		return nil
	})
	return &emptypb.Empty{}, err
}

func (a *Account) keyProto(k *Key) *adminpb.ServiceAccountKey {
	out := &adminpb.ServiceAccountKey{Name: a.Name() + "/keys/" + k.ID, KeyAlgorithm: adminpb.ServiceAccountKeyAlgorithm_KEY_ALG_RSA_2048,
		ValidAfterTime: timestamppb.New(k.Created), KeyOrigin: adminpb.ServiceAccountKeyOrigin_GOOGLE_PROVIDED,
		KeyType: adminpb.ListServiceAccountKeysRequest_USER_MANAGED}
	if !k.Expires.IsZero() {
		out.ValidBeforeTime = timestamppb.New(k.Expires)
	}
	return out
}

func (s *accountServer) CreateServiceAccountKey(ctx context.Context, req *adminpb.CreateServiceAccountKeyRequest) (*adminpb.ServiceAccountKey, error) {
	if t := req.GetPrivateKeyType(); t != adminpb.ServiceAccountPrivateKeyType_TYPE_UNSPECIFIED && t != adminpb.ServiceAccountPrivateKeyType_TYPE_GOOGLE_CREDENTIALS_FILE {
		return nil, fault.InvalidField("private_key_type", "Keys are given out as credentials files only")
	}
	if alg := req.GetKeyAlgorithm(); alg != adminpb.ServiceAccountKeyAlgorithm_KEY_ALG_UNSPECIFIED && alg != adminpb.ServiceAccountKeyAlgorithm_KEY_ALG_RSA_2048 {
		return nil, fault.InvalidField("key_algorithm", "Keys are made with RSA 2048; upload others")
	}
	acc, err := s.accountAt(ctx, req.GetName(), true)
	if err != nil {
		return nil, err
	}
	file, key, err := s.a.accounts.Mint(ctx, acc.Email)
	if err != nil {
		return nil, err
	}
	out := acc.keyProto(&key)
	out.PrivateKeyType = adminpb.ServiceAccountPrivateKeyType_TYPE_GOOGLE_CREDENTIALS_FILE
	out.PrivateKeyData = file
	return out, nil
}

// UploadServiceAccountKey registers a public key, as PEM of a certificate or of
// the key itself. RSA and P-256 are taken.
func (s *accountServer) UploadServiceAccountKey(ctx context.Context, req *adminpb.UploadServiceAccountKeyRequest) (*adminpb.ServiceAccountKey, error) {
	acc, err := s.accountAt(ctx, req.GetName(), true)
	if err != nil {
		return nil, err
	}
	bad := func(why string) error {
		return fault.InvalidField("public_key_data", "Error in field 'public_key_data' : %s", why)
	}
	block, _ := pem.Decode(req.GetPublicKeyData())
	if block == nil || len(req.GetPublicKeyData()) > 64<<10 {
		return nil, bad("Must be a certificate or a public key in PEM")
	}
	var pub crypto.PublicKey
	if block.Type == "CERTIFICATE" {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, bad("Certificate cannot be read")
		}
		pub = cert.PublicKey
	} else if pub, err = x509.ParsePKIXPublicKey(block.Bytes); err != nil {
		return nil, bad("Public key cannot be read")
	}
	if err := jws.CheckKey(pub); err != nil {
		return nil, bad(err.Error())
	}
	key, err := s.a.accounts.AddKey(ctx, acc.Email, pub)
	if err != nil {
		return nil, err
	}
	out := acc.keyProto(&key)
	out.KeyOrigin = adminpb.ServiceAccountKeyOrigin_USER_PROVIDED
	return out, nil
}

// keyAt returns the key with the given resource name.
func (s *accountServer) keyAt(ctx context.Context, name string, change bool) (*Account, *Key, error) {
	acc, err := s.accountAt(ctx, name, change)
	if err != nil {
		return nil, nil, err
	}
	_, id, ok := strings.Cut(name, "/keys/")
	if !ok || id == "" {
		return nil, nil, fault.InvalidField("name", "When parsing '%s' : Key name expected in the form 'projects/<project_id>/serviceAccounts/<email>/keys/<key_id>'.", shorten(name))
	}
	for i := range acc.Keys {
		if acc.Keys[i].ID == id {
			return acc, &acc.Keys[i], nil
		}
	}
	return nil, nil, fault.New(fault.NotFound, "Key not found: %s", shorten(name))
}

func (s *accountServer) GetServiceAccountKey(ctx context.Context, req *adminpb.GetServiceAccountKeyRequest) (*adminpb.ServiceAccountKey, error) {
	acc, key, err := s.keyAt(ctx, req.GetName(), false)
	if err != nil {
		return nil, err
	}
	out := acc.keyProto(key)
	switch req.GetPublicKeyType() {
	case adminpb.ServiceAccountPublicKeyType_TYPE_NONE:
	case adminpb.ServiceAccountPublicKeyType_TYPE_RAW_PUBLIC_KEY:
		out.PublicKeyData = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: key.Public})
	default:
		return nil, fault.InvalidField("public_key_type", "Keys are stored without a certificate: ask for TYPE_RAW_PUBLIC_KEY")
	}
	return out, nil
}

func (s *accountServer) ListServiceAccountKeys(ctx context.Context, req *adminpb.ListServiceAccountKeysRequest) (*adminpb.ListServiceAccountKeysResponse, error) {
	acc, err := s.accountAt(ctx, req.GetName(), false)
	if err != nil {
		return nil, err
	}
	out := &adminpb.ListServiceAccountKeysResponse{}
	if t := req.GetKeyTypes(); len(t) > 0 && !slices.Contains(t, adminpb.ListServiceAccountKeysRequest_USER_MANAGED) &&
		!slices.Contains(t, adminpb.ListServiceAccountKeysRequest_KEY_TYPE_UNSPECIFIED) {
		return out, nil
	}
	for i := range acc.Keys {
		out.Keys = append(out.Keys, acc.keyProto(&acc.Keys[i]))
	}
	return out, nil
}

func (s *accountServer) DeleteServiceAccountKey(ctx context.Context, req *adminpb.DeleteServiceAccountKeyRequest) (*emptypb.Empty, error) {
	acc, key, err := s.keyAt(ctx, req.GetName(), true)
	if err != nil {
		return nil, err
	}
	if err := s.keepRoot(ctx, acc, key.ID); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, s.a.accounts.DeleteKey(ctx, acc.Email, key.ID)
}

func (s *accountServer) ListRoles(context.Context, *adminpb.ListRolesRequest) (*adminpb.ListRolesResponse, error) {
	out := &adminpb.ListRolesResponse{}
	for _, name := range iam.Roles() {
		out.Roles = append(out.Roles, roleProto(name))
	}
	return out, nil
}

func (s *accountServer) GetRole(_ context.Context, req *adminpb.GetRoleRequest) (*adminpb.Role, error) {
	if _, ok := iam.Role(req.GetName()); !ok {
		return nil, fault.New(fault.NotFound, "Role not found: %s", shorten(req.GetName()))
	}
	return roleProto(req.GetName()), nil
}

func roleProto(name string) *adminpb.Role {
	set, _ := iam.Role(name)
	out := &adminpb.Role{Name: name, Stage: adminpb.Role_GA}
	for _, n := range iam.Permissions() {
		if p, ok := iam.Lookup(n); ok && set.Has(p) {
			out.IncludedPermissions = append(out.IncludedPermissions, n)
		}
	}
	return out
}

// policyServer is google.iam.v1.IAMPolicy for projects.
type policyServer struct {
	iampb.UnimplementedIAMPolicyServer
	a *Auth
}

func (s *policyServer) GetIamPolicy(ctx context.Context, req *iampb.GetIamPolicyRequest) (*iampb.Policy, error) {
	return ProjectPolicies{s.a.records}.Get(ctx, req.GetResource())
}

func (s *policyServer) SetIamPolicy(ctx context.Context, req *iampb.SetIamPolicyRequest) (*iampb.Policy, error) {
	if len(req.GetUpdateMask().GetPaths()) > 0 {
		return nil, fault.InvalidField("update_mask", "Policies of projects are replaced as a whole")
	}
	return ProjectPolicies{s.a.records}.Set(ctx, req.GetResource(), req.GetPolicy())
}

func (s *policyServer) TestIamPermissions(ctx context.Context, req *iampb.TestIamPermissionsRequest) (*iampb.TestIamPermissionsResponse, error) {
	held, err := s.a.TestPermissions(ctx, req.GetResource(), req.GetPermissions())
	if err != nil {
		return nil, err
	}
	return &iampb.TestIamPermissionsResponse{Permissions: held}, nil
}
