package rest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Rows are ReadRows in a form for people and browsers, a page at a time:
//
//	{"rows": [{"key", "cells": [{"family", "qualifier", "timestampMicros", "value",
//	"bytes", "labels"}], "cells_left_out": true}], "stats": {…}, "next": KEY}
//
// Keys, qualifiers and values are in base64. Of a value the first maxValue bytes are
// there; bytes is how long it is. A page ends behind the row with which it reaches
// maxPage bytes, or has maxRows rows. It has next then, the key of its last row, behind
// which the next page begins. stats is RequestStats, if the request asks for it. Of a row that is longer by itself the cells of maxPage bytes are there. The
// request is that of ReadRows.
//
// MutateRow is as Google's front ends would have it.
const (
	tableRows  = "/v2/{table_name=projects/*/instances/*/tables/*}:rows"
	viewRows   = "/v2/{authorized_view_name=projects/*/instances/*/tables/*/authorizedViews/*}:rows"
	matRows    = "/v2/{materialized_view_name=projects/*/instances/*/materializedViews/*}:rows"
	mutatePath = "/v2/{table_name=projects/*/instances/*/tables/*}:mutateRow"

	maxRows  = 1000
	maxValue = 64 << 10
	maxPage  = 4 << 20
)

func rowRoutes() ([]route, error) {
	methods := bigtablepb.File_google_bigtable_v2_bigtable_proto.Services().ByName("Bigtable").Methods()
	read, mutate := methods.ByName("ReadRows"), methods.ByName("MutateRow")
	page := func(protojson.MarshalOptions) answers { return new(rows) }
	var out []route
	for _, r := range []struct {
		method  protoreflect.MethodDescriptor
		path    string
		answers func(protojson.MarshalOptions) answers
		bound   func(proto.Message)
	}{{read, tableRows, page, boundPage}, {read, viewRows, page, boundPage}, {read, matRows, page, boundPage}, {mutate, mutatePath, nil, nil}} {
		rt, err := newRoute(r.method, &annotations.HttpRule{Pattern: &annotations.HttpRule_Post{Post: r.path}, Body: "*"})
		if err != nil {
			return nil, err
		}
		rt.answers, rt.bound = r.answers, r.bound
		out = append(out, rt)
	}
	return out, nil
}

// boundPage has a request ask for no more rows than a page has.
func boundPage(m proto.Message) {
	if r := m.(*bigtablepb.ReadRowsRequest); r.GetRowsLimit() == 0 || r.GetRowsLimit() > maxRows {
		r.RowsLimit = maxRows
	}
}

// rowFeatures say what a reader of pages understands: rows from the last back.
var rowFeatures = func() string {
	b, err := proto.Marshal(&bigtablepb.FeatureFlags{ReverseScans: true})
	if err != nil {
		panic(err) // a message of one bool
	}
	return base64.URLEncoding.EncodeToString(b)
}()

// errPageFull ends a call whose page has what it may have.
var errPageFull = errors.New("the page is full")

// rows puts the chunks of ReadRows together. It holds one row, of at most about maxPage
// bytes.
type rows struct {
	n, sent   int
	key       []byte
	family    string
	qualifier []byte
	row       []cellJSON
	rowBytes  int
	leftOut   bool
	cell      *cellJSON
	full      bool // there is more than this page has
	stats     []byte
}

// cellJSON is a cell.
type cellJSON struct {
	Family    string   `json:"family"`
	Qualifier []byte   `json:"qualifier"`
	Timestamp int64    `json:"timestampMicros,string"`
	Value     []byte   `json:"value"`
	Bytes     int64    `json:"bytes"`
	Labels    []string `json:"labels,omitempty"`
}

// rowJSON is a row.
type rowJSON struct {
	Key     []byte     `json:"key"`
	Cells   []cellJSON `json:"cells"`
	LeftOut bool       `json:"cells_left_out,omitempty"`
}

func (a *rows) add(encoded []byte) ([]byte, error) {
	if a.full {
		return nil, errPageFull
	}
	m := new(bigtablepb.ReadRowsResponse)
	if err := proto.Unmarshal(encoded, m); err != nil {
		return nil, err
	}
	if s := m.GetRequestStats(); s != nil {
		b, err := protojson.Marshal(s)
		if err != nil {
			return nil, err
		}
		a.stats = b
	}
	var out []byte
	for _, c := range m.GetChunks() {
		if a.sent >= maxPage {
			if a.full = true; out == nil {
				return nil, errPageFull
			}
			return out, nil // what comes next ends the call
		}
		if c.GetResetRow() {
			a.row, a.cell, a.rowBytes, a.leftOut = a.row[:0], nil, 0, false
			continue
		}
		a.chunk(c)
		if !c.GetCommitRow() {
			continue
		}
		b, err := compact(rowJSON{a.key, a.row, a.leftOut})
		if err != nil {
			return nil, err
		}
		switch a.n {
		case 0:
			out = append(out, `{"rows":[`...)
		default:
			out = append(out, ',')
		}
		out = append(append(out, '\n'), b...)
		a.n++
		a.sent += len(b)
		a.row, a.cell, a.rowBytes, a.leftOut = a.row[:0], nil, 0, false
	}
	return out, nil
}

// chunk takes a part of a row.
func (a *rows) chunk(c *bigtablepb.ReadRowsResponse_CellChunk) {
	if k := c.GetRowKey(); len(k) > 0 {
		a.key = bytes.Clone(k)
	}
	if f := c.GetFamilyName(); f != nil {
		a.family = f.GetValue()
	}
	if q := c.GetQualifier(); q != nil {
		a.qualifier = bytes.Clone(q.GetValue())
	}
	if a.cell == nil {
		a.cell = &cellJSON{Family: a.family, Qualifier: a.qualifier, Timestamp: c.GetTimestampMicros(), Labels: c.GetLabels(), Value: []byte{}}
		if a.cell.Qualifier == nil {
			a.cell.Qualifier = []byte{}
		}
	}
	value := c.GetValue()
	a.cell.Bytes += int64(len(value))
	a.cell.Value = append(a.cell.Value, value[:min(len(value), maxValue-len(a.cell.Value))]...)
	if c.GetValueSize() > 0 {
		return // the value goes on
	}
	const overhead = 80
	if a.rowBytes += len(a.cell.Value) + len(a.cell.Qualifier) + overhead; a.rowBytes > maxPage {
		a.leftOut = true
	} else {
		a.row = append(a.row, *a.cell)
	}
	a.cell = nil
}

func (a *rows) end(err error) []byte {
	var b []byte
	if a.n == 0 {
		b = append(b, `{"rows":[`...)
	}
	b = append(b, ']')
	if a.stats != nil {
		b = append(append(b, `,"stats":`...), a.stats...)
	}
	switch {
	case a.full, err == nil && a.n == maxRows:
		if key, jerr := compact(a.key); jerr == nil {
			b = append(append(b, `,"next":`...), key...)
		}
	case err != nil:
		b = append(append(b, ','), errorObject(err)...)
	}
	return append(b, "}\n"...)
}

// compact is JSON in one line, with "<" as it is.
func compact(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}
