package rest_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestRows writes rows and reads them a page at a time.
func TestRows(t *testing.T) {
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
	write := func(auth, key string, value []byte) (int, string) {
		t.Helper()
		return post(auth, instance+"/tables/t:mutateRow", fmt.Sprintf(`{"rowKey":%q,"mutations":[{"setCell":{"familyName":"f","columnQualifier":"AA==","timestampMicros":"1000","value":%q}}]}`,
			base64.StdEncoding.EncodeToString([]byte(key)), base64.StdEncoding.EncodeToString(value)))
	}
	long := bytes.Repeat([]byte("<"), 100<<10)
	for i := range 100 {
		if code, body := write(root, fmt.Sprintf("row-%03d", i), long); code != 200 {
			t.Fatal(code, body)
		}
	}
	type page struct {
		Rows []struct {
			Key   []byte
			Cells []struct {
				Family    string
				Qualifier []byte
				Timestamp string `json:"timestampMicros"`
				Value     []byte
				Bytes     int64
			}
		}
		Next  []byte
		Error any
	}
	read := func(path, body string) (p page) {
		t.Helper()
		code, got := post(root, instance+path+":rows", body)
		if err := json.Unmarshal([]byte(got), &p); code != 200 || err != nil || p.Error != nil {
			t.Fatalf("%d %v %.300s", code, err, got)
		}
		return p
	}
	// A page ends with its bytes, and the next begins behind it.
	n, pages := 0, 0
	for body := `{"rowsLimit":"1000"}`; body != ""; pages++ {
		p := read("/tables/t", body)
		for _, r := range p.Rows {
			c := r.Cells[0]
			if string(r.Key) != fmt.Sprintf("row-%03d", n) || len(r.Cells) != 1 || c.Family != "f" || !bytes.Equal(c.Qualifier, []byte{0}) || c.Timestamp != "1000" || c.Bytes != 100<<10 || !bytes.Equal(c.Value, long[:64<<10]) {
				t.Fatalf("row %d: %.100v", n, r)
			}
			n++
		}
		if body = ""; p.Next != nil {
			body = fmt.Sprintf(`{"rowsLimit":"1000","rows":{"rowRanges":[{"startKeyOpen":%q}]}}`, base64.StdEncoding.EncodeToString(p.Next))
		}
	}
	if n != 100 || pages < 2 {
		t.Errorf("%d rows in %d pages", n, pages)
	}
	if p := read("/tables/t", `{"rowsLimit":"2","reversed":true}`); len(p.Rows) != 2 || string(p.Rows[0].Key) != "row-099" || p.Next != nil {
		t.Errorf("%d rows", len(p.Rows))
	}
	if p := read("/tables/t", `{"rowsLimit":"2","rows":{"rowKeys":["eA=="]}}`); len(p.Rows) != 0 {
		t.Error(p)
	}
	if p := read("/tables/t", `{"rowsLimit":"1001","filter":{"stripValueTransformer":true}}`); len(p.Rows) != 100 || p.Next != nil {
		t.Errorf("%d rows", len(p.Rows))
	}
	for body, want := range map[string]string{`{"rowsLimit":"1","filter":{"rowSampleFilter":2}}`: "INVALID_ARGUMENT", `{"x":1}`: "unknown field"} {
		if code, got := post(root, instance+"/tables/t:rows", body); code != 400 || !strings.Contains(got, want) {
			t.Errorf("%s: %d %s", body, code, got)
		}
	}
	// As over gRPC: the same permissions.
	if code, body := post(other, instance+"/tables/t:rows", `{"rowsLimit":"1"}`); code != 403 || !strings.Contains(body, "bigtable.tables.readRows") {
		t.Error(code, body)
	}
	if code, body := write(other, "x", nil); code != 403 || !strings.Contains(body, "bigtable.tables.mutateRows") {
		t.Error(code, body)
	}
	if code, body := post("", instance+"/tables/t:rows", `{"rowsLimit":"1"}`); code != 401 {
		t.Error(code, body)
	}
	if code, body := post(root, instance+"/tables/nope:mutateRow", `{"rowKey":"eA==","mutations":[{"deleteFromRow":{}}]}`); code != 404 {
		t.Error(code, body)
	}
}
