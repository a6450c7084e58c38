package sql

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/query/types"
)

const (
	// tokenLife is for how long a client is told that a prepared query is good. It is good
	// for up to tokenStep longer, so that a statement that is prepared again and again
	// has one token, and one plan.
	tokenLife = 24 * time.Hour
	tokenStep = 10 * time.Minute
	// maxStatement bounds the text of a statement, in bytes.
	maxStatement = 1 << 20

	purposePrepared = "prepared query"
	purposeResume   = "query resume token"
)

// Prepare answers a PrepareQuery of an instance that exists. A format that is not set
// is the only one that there is: Node's client sets none.
func (s *Service) Prepare(ctx context.Context, req *bigtablepb.PrepareQueryRequest) (*bigtablepb.PrepareQueryResponse, error) {
	if err := checkText(req.GetQuery()); err != nil {
		return nil, err
	}
	params, err := paramTypes("param_types", req.GetParamTypes())
	if err != nil {
		return nil, err
	}
	now := s.o.Now()
	expires := now.Truncate(tokenStep).Add(tokenLife + tokenStep).Unix()
	key := statementKey(req.GetInstanceName(), req.GetQuery(), params)
	cached, known := s.plans.get(key[:])
	if known {
		st, err := s.lookAll(ctx, cached.plan.deps)
		if err != nil {
			return nil, err
		}
		known = st == unchanged
	}
	if !known {
		p, err := s.analyze(ctx, req.GetInstanceName(), req.GetQuery(), params)
		if err != nil {
			return nil, err
		}
		cached = cachedPlan{key: string(key[:]), plan: p, statement: key}
	}
	if cached.expires != expires {
		t := prepared{semantics: semantics, expires: expires, instance: req.GetInstanceName(), text: req.GetQuery(), params: params,
			metadata: cached.plan.encoded, deps: cached.plan.deps}
		b, err := t.encode()
		if err != nil {
			return nil, err
		}
		if cached.token, err = seal(ctx, s.o.MAC, purposePrepared, b); err != nil {
			return nil, err
		}
		cached.expires = expires
		if !cached.plan.lacks {
			s.plans.put(cached)
		}
		s.plans.put(cachedPlan{key: string(cached.token), plan: cached.plan, statement: sha256.Sum256(cached.token), expires: expires})
	}
	return &bigtablepb.PrepareQueryResponse{Metadata: cached.plan.metadata, PreparedQuery: cached.token, ValidUntil: timestamppb.New(now.Add(tokenLife))}, nil
}

func checkText(text string) error {
	switch {
	case text == "":
		return fault.InvalidField("query", "Error in field 'query' : Must not be empty")
	case len(text) > maxStatement:
		return fault.InvalidField("query", "Error in field 'query' : A statement must be at most %d bytes, but found %d", maxStatement, len(text))
	case !utf8.ValidString(text):
		return fault.InvalidField("query", "Error in field 'query' : A statement must be valid UTF-8")
	}
	return nil
}

// statementKey is the key of a statement in the cache of plans.
func statementKey(instance, text string, params map[string]*types.Type) hash {
	b := make([]byte, 0, 256+len(text))
	b = append(b, "statement\x00"...)
	b = appendString(b, instance)
	b = appendString(b, text)
	return sha256.Sum256(appendTypes(b, params))
}

// analyze makes a plan of a statement.
func (s *Service) analyze(ctx context.Context, instance, text string, params map[string]*types.Type) (*plan, error) {
	c := newCatalog(s, instance)
	defer c.release()
	if err := c.charge(text); err != nil {
		return nil, err
	}
	q, err := s.o.Engine.Prepare(ctx, c, text, params)
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Kind == fault.Invalid && f.Field == "" {
		e := *f
		e.Field = "query"
		return nil, &e
	}
	if err != nil {
		return nil, err
	}
	if len(q.Columns()) == 0 {
		return nil, fault.New(fault.Internal, "a statement without columns: %q", text)
	}
	p := &plan{prepared: q, declared: params, deps: c.deps, text: text, instance: instance, lacks: c.lacks}
	if p.metadata, p.encoded, err = columnsOf(q.Columns()); err != nil {
		return nil, fault.New(fault.Internal, "describe a result: %w", err)
	}
	return p, nil
}

// lookAll tells what has become of what a statement depends on. What the caller may not read
// counts as replaced: it may be a materialized view, without which the statement has another
// plan, and what else the caller is to be told an analysis tells.
func (s *Service) lookAll(ctx context.Context, deps []dependency) (state, error) {
	all := unchanged
	for i := range deps {
		st, err := s.look(ctx, &deps[i])
		if fault.KindOf(err) == fault.PermissionDenied {
			return replaced, nil
		}
		if err != nil {
			return 0, err
		}
		all = max(all, st)
	}
	return all, nil
}

// expired tells the client to prepare the statement again. It is told so only
// before it has a resume token.
func expired(format string, args ...any) error {
	return &fault.Error{Kind: fault.FailedPrecondition, Field: "prepared_query", Reason: "PREPARED_QUERY_EXPIRED",
		Msg: "The prepared query has expired: " + fmt.Sprintf(format, args...) + ". Prepare it again."}
}

// noLonger refuses a resume token. It has no violation, so that clients do not
// prepare the statement again and take other rows for the rest of these.
func noLonger() error {
	return fault.New(fault.FailedPrecondition, "The resume token is no longer valid; run the query again")
}

// known returns the plan of a prepared query, and its hash. resuming says that
// the client has a resume token.
func (s *Service) known(ctx context.Context, instance string, token []byte, resuming bool) (*plan, hash, error) {
	gone := func(format string, args ...any) error {
		if resuming {
			return noLonger()
		}
		return expired(format, args...)
	}
	cached, ok := s.plans.get(token)
	if ok && !resuming && s.o.Now().Unix() > cached.expires {
		ok = false // the token tells
	}
	// A plan under a token was made with that token, so it is one of ours.
	if ok && cached.plan.instance == instance {
		st, err := s.lookAll(ctx, cached.plan.deps)
		// A client that has a part of the rows gets the others as they began, whatever was
		// added to the tables meanwhile.
		if err != nil || st == unchanged || st == changed && resuming {
			return cached.plan, cached.statement, err
		}
	}
	key := hash(sha256.Sum256(token))
	fields, ok, err := unseal(ctx, s.o.MAC, purposePrepared, kindPrepared, token)
	if err != nil {
		return nil, key, err
	}
	var t *prepared
	if ok {
		t, ok = decodePrepared(fields)
	}
	if !ok {
		return nil, key, fault.InvalidField("prepared_query", "Error in field 'prepared_query' : Not a prepared query of this server")
	}
	switch {
	case t.instance != instance:
		return nil, key, fault.InvalidField("prepared_query", "Error in field 'prepared_query' : It was prepared for another instance")
	case t.semantics != semantics:
		return nil, key, gone("it was prepared by another version")
	case !resuming && s.o.Now().Unix() > t.expires:
		return nil, key, gone("its time is over")
	}
	p, err := s.analyze(ctx, instance, t.text, t.params)
	switch kind := fault.KindOf(err); {
	case kind == fault.Invalid || kind == fault.NotFound:
		// Preparing it again tells why.
		return nil, key, gone("it is no longer valid")
	case err != nil:
		return nil, key, err
	// A table that is another one now, or a view with another query, gives rows of which
	// the client knows nothing, also if the columns are alike.
	case replacedSince(t.deps, p.deps):
		return nil, key, gone("what it reads is gone or was replaced")
	case string(p.encoded) != string(t.metadata):
		return nil, key, gone("its result has other columns now")
	}
	s.plans.put(cachedPlan{key: string(token), plan: p, statement: key, expires: t.expires})
	return p, key, nil
}
