package auth

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/backend"
)

const accountPrefix = "accounts/"

// accountDomain ends the e-mail addresses of service accounts that are created
// by id. It is reserved for private use, so that no address belongs to another service.
const accountDomain = ".iam.trestle.internal"

// SystemProject is the project of service accounts that belong to no other.
const SystemProject = "trestle-system"

const (
	maxKeys = 10 // of an account
	keyBits = 2048
)

// An Account is a service account.
type Account struct {
	Email       string    `json:"email"`
	Project     string    `json:"project"`
	UniqueID    string    `json:"unique_id"` // digits
	DisplayName string    `json:"display_name,omitempty"`
	Description string    `json:"description,omitempty"`
	Disabled    bool      `json:"disabled,omitempty"`
	Created     time.Time `json:"created"`
	// Root allows everything everywhere, whatever policies say.
	Root bool  `json:"root,omitempty"`
	Keys []Key `json:"keys,omitempty"`

	version uint64
}

// A Key is the public half of one of an account's keys.
type Key struct {
	ID      string    `json:"id"`
	Public  []byte    `json:"public"` // PKIX, DER
	Created time.Time `json:"created"`
	// Expires is zero for a key without end.
	Expires time.Time `json:"expires,omitzero"`
}

// Name returns the account's resource name.
func (a *Account) Name() string { return "projects/" + a.Project + "/serviceAccounts/" + a.Email }

// Accounts keeps service accounts in records. It is safe for concurrent use,
// also by several processes.
type Accounts struct {
	Records backend.Records
	// TokenURI is written into minted keys: where clients that exchange their
	// own tokens for ours do so.
	TokenURI string
	// Now is time.Now if nil.
	Now func() time.Time
}

func (s *Accounts) now() time.Time {
	if s.Now == nil {
		return time.Now()
	}
	return s.Now()
}

var (
	accountID = regexp.MustCompile(`^[a-z]([-a-z0-9]{4,28}[a-z0-9])$`)
	projectID = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.:]{0,61}[a-z0-9])?$`)
)

// Email returns the address of the account that is created by id in project.
func Email(id, project string) string {
	// A domain-scoped project is written the other way round, as Google does.
	if domain, p, ok := strings.Cut(project, ":"); ok {
		project = p + "." + domain
	}
	return id + "@" + project + accountDomain
}

// Create makes an account without keys. AlreadyExists if there is one.
func (s *Accounts) Create(ctx context.Context, project, id, displayName, description string, root bool) (*Account, error) {
	if !projectID.MatchString(project) {
		return nil, fault.InvalidField("name", "'%s' is not the id of a project", project)
	}
	if !accountID.MatchString(id) {
		return nil, fault.InvalidField("account_id", "'%s' is not an account id: 6 to 30 lowercase letters, digits and hyphens, beginning with a letter", id)
	}
	if len(displayName) > 100 || len(description) > 256 {
		return nil, fault.InvalidField("service_account", "The display name may have 100 bytes, the description 256")
	}
	unique, err := rand.Int(rand.Reader, new(big.Int).Exp(big.NewInt(10), big.NewInt(20), nil))
	if err != nil {
		return nil, err
	}
	a := &Account{Email: Email(id, project), Project: project, UniqueID: fmt.Sprintf("1%020d", unique),
		DisplayName: displayName, Description: description, Created: s.now().UTC(), Root: root}
	err = s.put(ctx, a)
	if fault.KindOf(err) == fault.Aborted {
		return nil, fault.New(fault.AlreadyExists, "Service account %s already exists", a.Email)
	}
	return a, err
}

func (s *Accounts) put(ctx context.Context, a *Account) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	v, err := s.Records.PutRecord(ctx, accountPrefix+a.Email, b, a.version)
	if err == nil {
		a.version = v
	}
	return err
}

func decodeAccount(b []byte, version uint64) (*Account, error) {
	a := new(Account)
	if err := json.Unmarshal(b, a); err != nil {
		return nil, fault.New(fault.Corruption, "read account record: %w", err)
	}
	a.version = version
	return a, nil
}

// Get returns an account, or NotFound.
func (s *Accounts) Get(ctx context.Context, email string) (*Account, error) {
	email = strings.ToLower(email)
	b, version, err := s.Records.GetRecord(ctx, accountPrefix+email)
	if fault.KindOf(err) == fault.NotFound {
		return nil, fault.New(fault.NotFound, "Service account not found: %s", email)
	}
	if err != nil {
		return nil, err
	}
	return decodeAccount(b, version)
}

// List returns the accounts of a project, or all if it is empty, by e-mail.
func (s *Accounts) List(ctx context.Context, project string) ([]*Account, error) {
	var out []*Account
	err := s.Records.ListRecords(ctx, accountPrefix, func(_ string, b []byte, version uint64) error {
		a, err := decodeAccount(b, version)
		if err == nil && (project == "" || a.Project == project) {
			out = append(out, a)
		}
		return err
	})
	return out, err
}

// Delete removes an account with its keys.
func (s *Accounts) Delete(ctx context.Context, email string) error {
	for {
		a, err := s.Get(ctx, email)
		if err != nil {
			return err
		}
		err = s.Records.DeleteRecord(ctx, accountPrefix+a.Email, a.version)
		if fault.KindOf(err) != fault.Aborted || ctx.Err() != nil {
			return err
		}
	}
}

// Update applies change to an account until no other change comes in between.
func (s *Accounts) Update(ctx context.Context, email string, change func(*Account) error) (*Account, error) {
	for {
		a, err := s.Get(ctx, email)
		if err != nil {
			return nil, err
		}
		if err := change(a); err != nil {
			return nil, err
		}
		err = s.put(ctx, a)
		if fault.KindOf(err) != fault.Aborted || ctx.Err() != nil {
			return a, err
		}
	}
}

// Mint makes a new key of an account and returns it as Google writes keys of
// service accounts: a JSON file that every client library takes. Nothing else
// has the private half.
func (s *Accounts) Mint(ctx context.Context, email string) (file []byte, key Key, err error) {
	a, err := s.Get(ctx, email)
	if err != nil {
		return nil, key, err
	}
	if file, key, err = s.generate(a); err != nil {
		return nil, key, err
	}
	return file, key, s.register(ctx, email, key)
}

// generate makes a new key.
func (s *Accounts) generate(a *Account) (file []byte, key Key, err error) {
	private, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		return nil, key, err
	}
	if key, err = newKey(private.Public(), s.now()); err != nil {
		return nil, key, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, key, err
	}
	file, err = json.MarshalIndent(struct {
		Type         string `json:"type"`
		ProjectID    string `json:"project_id"`
		PrivateKeyID string `json:"private_key_id"`
		PrivateKey   string `json:"private_key"`
		ClientEmail  string `json:"client_email"`
		ClientID     string `json:"client_id"`
		AuthURI      string `json:"auth_uri"`
		TokenURI     string `json:"token_uri"`
		ProviderURL  string `json:"auth_provider_x509_cert_url"`
		ClientURL    string `json:"client_x509_cert_url"`
	}{
		"service_account", a.Project, key.ID,
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		a.Email, a.UniqueID, s.uri("/auth"), s.uri("/token"), s.uri("/certs"), s.uri("/x509/" + url.PathEscape(a.Email)),
	}, "", "  ")
	return append(file, '\n'), key, err
}

// register adds a key to an account.
func (s *Accounts) register(ctx context.Context, email string, key Key) error {
	_, err := s.Update(ctx, email, func(a *Account) error {
		if len(a.Keys) >= maxKeys {
			return fault.New(fault.FailedPrecondition, "Service account %s has %d keys already, delete one first", a.Email, len(a.Keys))
		}
		a.Keys = append(slices.Clone(a.Keys), key)
		return nil
	})
	return err
}

// uri returns the token URI with another path.
func (s *Accounts) uri(path string) string {
	if path == "/token" {
		return s.TokenURI
	}
	return strings.TrimSuffix(s.TokenURI, "/token") + path
}

func newKey(pub crypto.PublicKey, now time.Time) (Key, error) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return Key{}, err
	}
	id := make([]byte, 20)
	rand.Read(id)
	return Key{ID: hex.EncodeToString(id), Public: der, Created: now.UTC()}, nil
}

// AddKey registers the public half of a key that the caller keeps.
func (s *Accounts) AddKey(ctx context.Context, email string, pub crypto.PublicKey) (Key, error) {
	key, err := newKey(pub, s.now())
	if err != nil {
		return key, fault.InvalidField("public_key_data", "The key cannot be stored: %s", err)
	}
	return key, s.register(ctx, email, key)
}

// DeleteKey removes a key: NotFound if the account has none of that id.
func (s *Accounts) DeleteKey(ctx context.Context, email, id string) error {
	_, err := s.Update(ctx, email, func(a *Account) error {
		i := slices.IndexFunc(a.Keys, func(k Key) bool { return k.ID == id })
		if i < 0 {
			return fault.New(fault.NotFound, "Key not found: %s of %s", id, a.Email)
		}
		a.Keys = slices.Delete(slices.Clone(a.Keys), i, i+1)
		return nil
	})
	return err
}
