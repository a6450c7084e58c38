package wire

import (
	"cloud.google.com/go/bigtable/apiv2/bigtablepb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/schema"
)

// mutateRowOf and mutateRowsOf are the decoders above written against the
// generated code. Tests hold the two against each other.

func mutateRowOf(p *bigtablepb.MutateRowRequest) (Target, row.Entry, *fault.Error) {
	t := Target{Table: p.GetTableName(), View: p.GetAuthorizedViewName(), Profile: p.GetAppProfileId()}
	e, err := entryOf(p.GetRowKey(), p.GetMutations(), p.GetIdempotency())
	return t, e, err
}

func mutateRowsOf(p *bigtablepb.MutateRowsRequest) (Target, []row.Entry, *fault.Error) {
	t := Target{Table: p.GetTableName(), View: p.GetAuthorizedViewName(), Profile: p.GetAppProfileId()}
	if len(p.GetEntries()) == 0 {
		return t, nil, fault.InvalidField("entries", "No mutations provided")
	}
	total := 0
	for _, e := range p.GetEntries() {
		total += len(e.GetMutations())
	}
	if total > schema.MaxMutations {
		return t, nil, fault.InvalidField("entries", "Too many mutations: %d provided; limit %d", total, schema.MaxMutations)
	}
	var out []row.Entry
	for i, e := range p.GetEntries() {
		r, err := entryOf(e.GetRowKey(), e.GetMutations(), e.GetIdempotency())
		if err != nil {
			return t, nil, within(err, "entries", i)
		}
		out = append(out, r)
	}
	return t, out, nil
}

func entryOf(key []byte, muts []*bigtablepb.Mutation, idem *bigtablepb.Idempotency) (row.Entry, *fault.Error) {
	e := row.Entry{Key: key}
	if err := checkKey("row_key", key); err != nil {
		return e, err
	}
	if err := checkCount("mutations", len(muts), true); err != nil {
		return e, err
	}
	var m mutation
	for i, p := range muts {
		m.from(p)
		var r row.Mutation
		if err := m.finish(&r); err != nil {
			return e, within(err, "mutations", i)
		}
		e.Mutations = append(e.Mutations, r)
	}
	if idem != nil {
		st := idem.GetStartTime()
		tok, err := token(idem.GetToken(), st != nil, st.GetSeconds(), st.GetNanos())
		if err != nil {
			return e, within(err, "idempotency", -1)
		}
		e.Token = tok
	}
	return e, nil
}
