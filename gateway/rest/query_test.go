package rest_test

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable/apiv2/bigtablepb"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

func TestQueries(t *testing.T) {
	f := newFixture(t)
	_, root := f.account("root-acc", true)
	_, other := f.account("other-acc", false)
	post := f.post
	const instance = "/v2/projects/p/instances/inst-1"
	if code, body := post(root, "/v2/projects/p/instances", `{"instanceId":"inst-1","instance":{"displayName":"instance"},"clusters":{"cl-1":{"location":"projects/p/locations/local","serveNodes":1}}}`); code != 200 {
		t.Fatal(code, body)
	}
	if code, body := post(root, instance+"/tables", `{"tableId":"t","table":{"columnFamilies":{"f":{}}}}`); code != 200 {
		t.Fatal(code, body)
	}
	// For people.
	code, body := post(root, instance+":query", `{"query":"SELECT 1 AS a, 'x' AS b, b'\\xff' AS c, [1.5, NULL] AS d, STRUCT(TRUE AS e) AS s, DATE '2024-02-29' AS g, @p AS p",
		"params":{"p":{"type":{"int64Type":{}},"intValue":"9007199254740993"}}}`)
	const want = `{"columns":[{"name":"a","type":"INT64"},{"name":"b","type":"STRING"},{"name":"c","type":"BYTES"},{"name":"d","type":"ARRAY<FLOAT64>"},{"name":"s","type":"STRUCT<e BOOL>"},{"name":"g","type":"DATE"},{"name":"p","type":"INT64"}],
"rows":[
[1,"x",{"base64":"/w=="},[1.5,null],{"e":true},"2024-02-29",9007199254740993]]}
`
	if code != 200 || body != want || !json.Valid([]byte(body)) {
		t.Errorf("%d %s\nwant %s", code, body, want)
	}
	if code, body := post(root, instance+":query", `{"query":"SELECT n FROM UNNEST(GENERATE_ARRAY(1, 3)) AS n"}`); code != 200 || !strings.Contains(body, "[1],\n[2],\n[3]]}") {
		t.Error(code, body)
	}
	if code, body := post(root, instance+":query", `{"query":"SELECT * FROM t"}`); code != 200 || !strings.Contains(body, `"rows":[]}`) {
		t.Error(code, body)
	}
	for body, want := range map[string]string{
		`{"query":"SELECT x"}`:     "Unrecognized name: x [at 1:8]",
		`{"query":"SELECT 1/0"}`:   "division by zero",
		`{}`:                       "Exactly one of prepared_query and query",
		`{"preparedQuery":"eA=="}`: "Not a prepared query",
		`{"query":"SELECT @p","params":{"p":{"intValue":1}}}`: "parameter 'p'",
	} {
		// What goes wrong behind the columns is in the body.
		if code, got := post(root, instance+":query", body); code == 200 && !strings.Contains(got, `"error":`) || !strings.Contains(got, want) || !json.Valid([]byte(got)) {
			t.Errorf("%s: %d %s", body, code, got)
		}
	}
	if code, body := post(other, instance+":query", `{"query":"SELECT 1"}`); code != 403 {
		t.Error(code, body)
	}
	if code, body := post("", instance+":query", `{"query":"SELECT 1"}`); code != 401 {
		t.Error(code, body)
	}
	// As Google's front ends have them.
	code, body = post(root, instance+":prepareQuery", `{"query":"SELECT 1 AS a","protoFormat":{}}`)
	p := new(bigtablepb.PrepareQueryResponse)
	if err := protojson.Unmarshal([]byte(body), p); err != nil || code != 200 {
		t.Fatal(code, body, err)
	}
	code, body = post(root, instance+":executeQuery", `{"preparedQuery":"`+base64.StdEncoding.EncodeToString(p.GetPreparedQuery())+`"}`)
	var list []json.RawMessage
	if err := json.Unmarshal([]byte(body), &list); err != nil || code != 200 || len(list) != 1 {
		t.Fatal(code, body, err)
	}
	m, rows := new(bigtablepb.ExecuteQueryResponse), new(bigtablepb.ProtoRows)
	if err := protojson.Unmarshal(list[0], m); err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(m.GetResults().GetProtoRowsBatch().GetBatchData(), rows); err != nil || rows.GetValues()[0].GetIntValue() != 1 {
		t.Error(m, err)
	}
	if code, body := post(root, instance+":query", `{"preparedQuery":"`+base64.StdEncoding.EncodeToString(p.GetPreparedQuery())+`"}`); code != 400 || !strings.Contains(body, "must have the text") {
		t.Error(code, body)
	}
	if code, body := post(root, instance+":executeQuery", `{}`); code != 400 {
		t.Error(code, body)
	}
}
