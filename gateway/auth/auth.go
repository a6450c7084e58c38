package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"cloud.google.com/go/iam/apiv1/iampb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/backend"
)

// Options configure an Auth.
type Options struct {
	// Names are the host names, and host:port pairs, that this server is reached
	// by. A token for any other audience is refused.
	Names []string
	// TokenURI is where the token endpoint is reached, for minted keys; its
	// assertions must be for it.
	TokenURI string
	// TokenFile is a file of static tokens; empty is none.
	TokenFile string
	// Issuers are OpenID Connect providers whose tokens are accepted.
	Issuers []Issuer
	// Anonymous lets callers without credentials do everything. It is for
	// emulators.
	Anonymous bool

	// Off allows everything without a look at credentials: what is left
	// is the audit log, with "anonymous" for a principal.
	Off bool

	// Audit gets one line for each call of an administrative method and for
	// refused credentials; nil gets none. If Off only the calls that change
	// something have lines. AuditData adds the calls of the data API, and all
	// others. Lines never hold row keys or values.
	Audit     *slog.Logger
	AuditData bool
	// Refused, if not nil, is told the reason of each refusal of credentials, and
	// "permission" for each call that was not permitted.
	Refused func(reason string)

	// Refresh is how often what others changed is read. Zero means 2 s.
	Refresh time.Duration
	// MaxStale is how long what was read is believed when it cannot be read
	// again. Zero means 1 minute.
	MaxStale time.Duration
	// Now is time.Now if nil.
	Now func() time.Time
	// Log is slog.Default if nil.
	Log *slog.Logger
}

// WithDefaults fills in what is zero.
func (o Options) WithDefaults() Options {
	if o.Refresh == 0 {
		o.Refresh = 2 * time.Second
	}
	if o.MaxStale == 0 {
		o.MaxStale = time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Validate returns everything that is wrong with o.
func (o Options) Validate() error {
	var errs []error
	for _, i := range o.Issuers {
		errs = append(errs, i.validate())
	}
	if o.Refresh < 0 || o.MaxStale < 0 {
		errs = append(errs, fmt.Errorf("Refresh is %v, MaxStale %v", o.Refresh, o.MaxStale))
	}
	return errors.Join(errs...)
}

// An Auth decides who callers are and what they may do. It is safe for
// concurrent use.
type Auth struct {
	o        Options
	records  backend.Records
	accounts Accounts
	now      func() time.Time
	cache    *tokenCache
	policies *policies
	issuers  []*issuer
	audit    *audit

	registry atomic.Pointer[registry]
	static   atomic.Pointer[staticTokens]
	reading  sync.Mutex // held while the registry is replaced

	stop context.CancelFunc
	done sync.WaitGroup
}

// Open reads accounts and tokens and keeps them fresh until Close. Close it
// before r.
func Open(ctx context.Context, r backend.Records, o Options) (*Auth, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.WithDefaults()
	a := &Auth{o: o, records: r, now: o.Now, cache: newTokenCache(),
		accounts: Accounts{Records: r, TokenURI: o.TokenURI, Now: o.Now},
		policies: newPolicies(o.Now, o.MaxStale), audit: newAudit(o)}
	a.policies.fetch = a.fetchPolicy(nil)
	if o.Off {
		a.stop = func() {}
		return a, nil
	}
	if err := a.Reload(ctx); err != nil {
		return nil, fmt.Errorf("read service accounts: %w", err)
	}
	if o.TokenFile != "" {
		s, err := readStatic(o.TokenFile, nil)
		if err != nil {
			return nil, err
		}
		a.static.Store(s)
	}
	run, cancel := context.WithCancel(context.Background())
	a.stop = cancel
	a.done.Go(func() { a.refresh(run) })
	for _, i := range o.Issuers {
		i := newIssuer(i, o.Log)
		a.issuers = append(a.issuers, i)
		a.done.Go(func() { i.run(run) })
	}
	return a, nil
}

// Close ends what Open began and waits for it.
func (a *Auth) Close() {
	a.stop()
	a.done.Wait()
}

// On tells whether a looks at who callers are. A nil Auth does not.
func (a *Auth) On() bool { return a != nil && !a.o.Off }

// AuditsData tells whether calls of the data API are audited. Those of a nil
// Auth are not.
func (a *Auth) AuditsData() bool { return a != nil && a.audit.log != nil && a.audit.data }

// UsePolicies sets the owner of the policies of instances and of what is in
// them. policy returns NotFound for what is not there, and an empty policy if
// none was set. Call it before requests are served.
func (a *Auth) UsePolicies(policy func(ctx context.Context, resource string) (*iampb.Policy, error)) {
	a.policies.fetch = a.fetchPolicy(policy)
}

func (a *Auth) fetchPolicy(others func(context.Context, string) (*iampb.Policy, error)) func(context.Context, string) (*iampb.Policy, error) {
	return func(ctx context.Context, resource string) (*iampb.Policy, error) {
		if isProject(resource) {
			p, _, err := ProjectPolicies{a.records}.read(ctx, resource)
			return p, err
		}
		if others == nil {
			return nil, fault.NotFound
		}
		// Reading a policy is our own business, not the caller's, and must not be
		// held to what the caller may.
		return others(context.WithValue(ctx, callKey{}, nil), resource)
	}
}

// Reload reads the accounts now.
func (a *Auth) Reload(ctx context.Context) error {
	a.reading.Lock()
	defer a.reading.Unlock()
	r, err := readRegistry(ctx, a.records, a.registry.Load(), a.now())
	if err != nil {
		return err
	}
	a.registry.Store(r)
	return nil
}

// refresh reads accounts and the token file again and again.
func (a *Auth) refresh(ctx context.Context) {
	tick := time.NewTicker(a.o.Refresh)
	defer tick.Stop()
	failing := map[string]bool{}
	// A failure is told when it begins and when it is over.
	report := func(what string, err error) {
		switch {
		case ctx.Err() != nil:
		case err != nil && !failing[what]:
			a.o.Log.LogAttrs(ctx, slog.LevelWarn, what+" cannot be read", slog.String("error", err.Error()))
		case err == nil && failing[what]:
			a.o.Log.LogAttrs(ctx, slog.LevelInfo, what+" can be read again")
		}
		failing[what] = err != nil
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		try, cancel := context.WithTimeout(ctx, 10*a.o.Refresh)
		report("service accounts", a.Reload(try))
		cancel()
		if a.o.TokenFile != "" {
			s, err := readStatic(a.o.TokenFile, a.static.Load())
			report("file of tokens", err)
			a.static.Store(s)
		}
	}
}

// Accounts returns the service accounts that a believes.
func (a *Auth) Accounts() *Accounts { return &a.accounts }

// Empty tells whether no key lets a caller in: there is no service
// account that has one.
func (a *Auth) Empty() bool { return len(a.registry.Load().keys) == 0 }
