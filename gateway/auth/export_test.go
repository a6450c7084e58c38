package auth

// Fields returns the fields that the rule of a method looks at.
func Fields(method string) (out []string) {
	if r := rules[method]; r != nil {
		for _, c := range r.checks {
			out = append(out, c.field)
		}
	}
	return out
}

// Methods returns the methods that have a rule, by service.
func Methods() map[string]map[string]string { return ruleText }

// Verify verifies a token.
func (a *Auth) Verify(tok string) (member string, reason string) {
	p, r := a.verify(tok)
	if r != nil {
		return "", r.reason
	}
	return p.Member, ""
}

// Exchange returns an access token for an assertion.
func (a *Auth) Exchange(assertion string) (tok, reason string) {
	t, r := a.exchange(assertion)
	if r != nil {
		return "", r.reason
	}
	return t.AccessToken, ""
}

// Forget drops what is remembered of policies.
func (a *Auth) Forget() { a.policies.forget() }

// Limits that tests wait for.
const (
	PolicyUsed = policyUsed
	Recheck    = recheck
)

// ForgetTokens drops what is remembered of tokens.
func (a *Auth) ForgetTokens() { a.cache = newTokenCache() }
