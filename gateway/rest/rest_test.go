package rest

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// A recorder answers every call with the same, and keeps what it was asked.
type recorder struct {
	method string
	md     metadata.MD
	peer   *peer.Peer
	req    proto.Message

	resp proto.Message
	err  error
}

func (r *recorder) Call(ctx context.Context, method string, md metadata.MD, decode func(proto.Message) error) (proto.Message, error) {
	r.method, r.md = method, md
	r.peer, _ = peer.FromContext(ctx)
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(strings.ReplaceAll(method[1:], "/", ".")))
	if err != nil {
		return nil, err
	}
	m := d.(protoreflect.MethodDescriptor)
	in, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
	if err != nil {
		return nil, err
	}
	req := in.New().Interface()
	if err := decode(req); err != nil {
		return nil, err
	}
	r.req = req
	if r.err != nil {
		return nil, r.err
	}
	if r.resp != nil {
		return r.resp, nil
	}
	out, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	if err != nil {
		return nil, err
	}
	return out.New().Interface(), nil
}

func newHandler(t testing.TB, c Caller, o Options) *Handler {
	t.Helper()
	h, err := New(c, o)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestRoutes calls every route and expects its own method to be called.
func TestRoutes(t *testing.T) {
	c := &recorder{}
	h := newHandler(t, c, Options{})
	methods := map[string]bool{}
	for _, s := range h.Samples() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(s.Method, s.Path, nil))
		if w.Code != 200 || c.method != s.RPC {
			t.Errorf("%s %s: called %s, want %s: %d %s", s.Method, s.Path, c.method, s.RPC, w.Code, w.Body)
		}
		methods[c.method] = true
	}
	// Every unary method of the admin services has a route.
	for _, name := range services[:2] {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if err != nil {
			t.Fatal(err)
		}
		ms := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range ms.Len() {
			if full := "/" + string(name) + "/" + string(ms.Get(i).Name()); !methods[full] {
				t.Errorf("%s has no route", full)
			}
		}
	}
	t.Logf("%d routes, %d methods", len(h.routes), len(methods))
}

func TestRequests(t *testing.T) {
	const inst = "projects/p/instances/i"
	for _, tc := range []struct {
		name, request, body string
		method, want        string // last part of the gRPC method, and its request as text
	}{
		{"path", "GET /v2/" + inst, "", "GetInstance", `name:"projects/p/instances/i"`},
		{"a colon within", "GET /v2/projects/example.com:p/instances/i", "", "GetInstance", `name:"projects/example.com:p/instances/i"`},
		{"escaped", "GET /v2/projects/p%2Fq/instances/%C3%A4", "", "GetInstance", `name:"projects/p%2Fq/instances/ä"`},
		{"longer path", "GET /v2/" + inst + "/tables/t", "", "GetTable", `name:"projects/p/instances/i/tables/t"`},
		{"wildcard as a name", "GET /v2/projects/p/instances/-/clusters", "", "ListClusters", `parent:"projects/p/instances/-"`},
		{"query", "GET /v2/" + inst + "/tables?view=NAME_ONLY&pageSize=3&page_token=a%20b", "", "ListTables",
			`parent:"projects/p/instances/i" view:NAME_ONLY page_size:3 page_token:"a b"`},
		{"enum by number", "GET /v2/" + inst + "/tables/t?view=4", "", "GetTable", `name:"projects/p/instances/i/tables/t" view:FULL`},
		{"timestamps", "GET /v2/" + inst + "/clusters/c/hotTablets?startTime=2026-01-02T03:04:05Z", "", "ListHotTablets",
			`parent:"projects/p/instances/i/clusters/c" start_time:{seconds:1767323045}`},
		{"bool and etag", "DELETE /v2/" + inst + "/appProfiles/a?ignoreWarnings=True", "", "DeleteAppProfile", `name:"projects/p/instances/i/appProfiles/a" ignore_warnings:true`},
		{"system parameters", "GET /v2/" + inst + "?alt=json&prettyPrint=false&key=x&$.xgafv=2&fields=name", "", "GetInstance", `name:"projects/p/instances/i"`},
		{"whole body", "POST /v2/projects/p/instances", `{"instanceId":"i","instance":{"displayName":"d","labels":{"a":"b"}},"clusters":{"c":{"serveNodes":1,"defaultStorageType":"SSD"}}}`,
			"CreateInstance", `parent:"projects/p" instance_id:"i" instance:{display_name:"d" labels:{key:"a" value:"b"}} clusters:{key:"c" value:{serve_nodes:1 default_storage_type:SSD}}`},
		{"proto names", "POST /v2/projects/p/instances", `{"instance_id":"i"}`, "CreateInstance", `parent:"projects/p" instance_id:"i"`},
		{"the path wins", "POST /v2/projects/p/instances", `{"parent":"projects/other"}`, "CreateInstance", `parent:"projects/p"`},
		{"empty body", "POST /v2/" + inst + "/tables/t:undelete", "", "UndeleteTable", `name:"projects/p/instances/i/tables/t"`},
		{"body in a field", "POST /v2/" + inst + "/clusters?clusterId=c", `{"serveNodes":3}`, "CreateCluster", `parent:"projects/p/instances/i" cluster_id:"c" cluster:{serve_nodes:3}`},
		{"mask", "PATCH /v2/" + inst + "?updateMask=displayName,labels", `{"displayName":"d","name":"other"}`, "PartialUpdateInstance",
			`instance:{name:"projects/p/instances/i" display_name:"d"} update_mask:{paths:"display_name" paths:"labels"}`},
		{"mask with proto names", "PATCH /v2/" + inst + "/tables/t?updateMask=change_stream_config.retention_period", `{"changeStreamConfig":{"retentionPeriod":"86400s"}}`,
			"UpdateTable", `table:{name:"projects/p/instances/i/tables/t" change_stream_config:{retention_period:{seconds:86400}}} update_mask:{paths:"change_stream_config.retention_period"}`},
		{"verb", "POST /v2/" + inst + "/tables:restore", `{"tableId":"t","backup":"b"}`, "RestoreTable", `parent:"projects/p/instances/i" table_id:"t" backup:"b"`},
		{"bytes", "POST /v2/" + inst + "/tables/t:dropRowRange", `{"rowKeyPrefix":"AAE="}`, "DropRowRange", `name:"projects/p/instances/i/tables/t" row_key_prefix:"\x00\x01"`},
		{"additional binding", "POST /v2/" + inst + "/clusters/c/backups/b:getIamPolicy", `{"options":{"requestedPolicyVersion":3}}`, "GetIamPolicy",
			`resource:"projects/p/instances/i/clusters/c/backups/b" options:{requested_policy_version:3}`},
		{"operation", "GET /v2/operations/projects/p/instances/i/operations/1", "", "GetOperation", `name:"operations/projects/p/instances/i/operations/1"`},
		{"operations", "GET /v2/operations/projects/p/operations?filter=done%3Dtrue", "", "ListOperations", `name:"operations/projects/p" filter:"done=true"`},
		{"cancel", "POST /v2/operations/projects/p/instances/i/operations/1:cancel", "{}", "CancelOperation", `name:"operations/projects/p/instances/i/operations/1"`},
		{"policy of a project", "POST /v1/projects/p:getIamPolicy", "{}", "GetIamPolicy", `resource:"projects/p"`},
		{"service account", "GET /v1/projects/p/serviceAccounts/a@b.c", "", "GetServiceAccount", `name:"projects/p/serviceAccounts/a@b.c"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &recorder{}
			method, target, _ := strings.Cut(tc.request, " ")
			r := httptest.NewRequest(method, target, strings.NewReader(tc.body))
			if tc.body != "" {
				r.Header.Set("Content-Type", "application/json; charset=utf-8")
			}
			r.Header.Set("Authorization", "Bearer x")
			w := httptest.NewRecorder()
			newHandler(t, c, Options{}).ServeHTTP(w, r)
			if w.Code != http.StatusOK {
				t.Fatalf("got %d %s", w.Code, w.Body)
			}
			if got := c.method[strings.LastIndexByte(c.method, '/')+1:]; got != tc.method {
				t.Fatalf("called %s, want %s", got, tc.method)
			}
			want := c.req.ProtoReflect().New().Interface()
			if err := prototext.Unmarshal([]byte(tc.want), want); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(c.req, want) {
				t.Errorf("got  %v\nwant %v", c.req, want)
			}
			if got := c.md.Get("authorization"); len(got) != 1 || got[0] != "Bearer x" {
				t.Errorf("authorization %q", got)
			}
			if c.peer == nil || c.peer.Addr.String() != r.RemoteAddr {
				t.Errorf("peer %v", c.peer)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	const inst = "/v2/projects/p/instances/i"
	for _, tc := range []struct {
		name, request, body string
		code                int
		want                string // in the message
		called              bool   // the method is asked for who calls before the request is read
	}{
		{"unknown path", "GET /v2/projects/p/nothing", "", 404, "was not found", false},
		{"unknown verb", "POST " + inst + "/tables/t:explode", "", 404, "was not found", false},
		{"trailing slash", "GET " + inst + "/", "", 404, "was not found", false},
		{"empty name", "GET /v2/projects//instances", "", 404, "was not found", false},
		{"wrong method", "PUT " + inst + "/tables", "", 405, "not allowed", false},
		{"wrong method for a verb", "GET /v2/operations/a:cancel", "", 405, "not allowed", false},
		{"unknown parameter", "GET " + inst + "?x=1", "", 400, `Unknown name "x"`, true},
		{"parameter beside a whole body", "POST /v2/projects/p/instances?instanceId=i", "{}", 400, `Unknown name "instanceId"`, true},
		{"parameter within the body", "POST " + inst + "/clusters?cluster.serveNodes=1", "{}", 400, "Unknown name", true},
		{"parameter that is a map", "GET " + inst + "?labels.a=b", "", 400, "Unknown name", true},
		{"no number", "GET " + inst + "/tables?pageSize=many", "", 400, "Invalid value at 'pageSize' (TYPE_INT32)", true},
		{"no value of the enum", "GET " + inst + "/tables?view=HALF", "", 400, "Invalid value at 'view'", true},
		{"no time", "GET " + inst + "/clusters/c/hotTablets?startTime=now", "", 400, "Invalid value at 'startTime' (google.protobuf.Timestamp)", true},
		{"twice", "GET " + inst + "/tables?pageSize=1&pageSize=x", "", 400, "Invalid value", true},
		{"bad query", "GET " + inst + "?%zz", "", 400, "Query", false},
		{"another format", "GET " + inst + "?alt=media", "", 400, "answers are JSON", false},
		{"body for a GET", "GET " + inst, "{}", 400, "body is not allowed", true},
		{"no JSON", "POST /v2/projects/p/instances", "{", 400, "Invalid JSON payload received", true},
		{"two values", "POST /v2/projects/p/instances", "{}{}", 400, "Invalid JSON payload received", true},
		{"unknown field", "POST /v2/projects/p/instances", `{"what":1}`, 400, `unknown field "what"`, true},
		{"field twice", "POST /v2/projects/p/instances", `{"instanceId":"a","instanceId":"b"}`, 400, "duplicate", true},
		{"too deep", "POST " + inst + "/tables/t:modifyColumnFamilies", `{"modifications":[{"id":"f","create":{"gcRule":` + strings.Repeat(`{"union":{"rules":[`, 100) + strings.Repeat("]}}", 100) + `}}]}`,
			400, "depth", true},
		{"too long", "POST /v2/projects/p/instances", `{"instanceId":"` + strings.Repeat("x", 1<<12) + `"}`, 400, "exceeds the limit", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &recorder{}
			method, target, _ := strings.Cut(tc.request, " ")
			r := httptest.NewRequest(method, "/", strings.NewReader(tc.body))
			r.URL = mustURL(t, target)
			if tc.body != "" {
				r.Header.Set("Content-Type", "application/json")
			}
			w := httptest.NewRecorder()
			newHandler(t, c, Options{MaxBody: 3 << 10}).ServeHTTP(w, r)
			e := decodeError(t, w.Result())
			if w.Code != tc.code || e.Code != tc.code || !strings.Contains(e.Message, tc.want) {
				t.Errorf("got %d %+v, want %d %q", w.Code, e, tc.code, tc.want)
			}
			if (c.method != "") != tc.called {
				t.Errorf("called %q", c.method)
			}
			if tc.code == 405 && w.Header().Get("Allow") == "" {
				t.Error("no Allow header")
			}
		})
	}
	t.Run("a form of a web page", func(t *testing.T) {
		r := httptest.NewRequest(http.MethodPost, inst+"/tables/t:dropRowRange", strings.NewReader(`{"deleteAllDataFromTable":true}`))
		r.Header.Set("Content-Type", "text/plain")
		w := httptest.NewRecorder()
		c := &recorder{}
		newHandler(t, c, Options{}).ServeHTTP(w, r)
		if w.Code != 400 || c.req != nil {
			t.Errorf("got %d, request %v", w.Code, c.req)
		}
	})
}

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.ParseRequestURI(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

type jsonError struct {
	Code    int
	Message string
	Status  string
	Details []map[string]any
}

func decodeError(t *testing.T, r *http.Response) jsonError {
	t.Helper()
	var out struct{ Error jsonError }
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	if ct := r.Header.Get("Content-Type"); ct != "application/json; charset=UTF-8" {
		t.Errorf("content type %q", ct)
	}
	return out.Error
}

// TestErrors checks the code of HTTP for each of gRPC, and the form of details.
func TestErrors(t *testing.T) {
	want := map[codes.Code]struct {
		http int
		name string
	}{
		codes.Canceled: {499, "CANCELLED"}, codes.Unknown: {500, "UNKNOWN"}, codes.InvalidArgument: {400, "INVALID_ARGUMENT"},
		codes.DeadlineExceeded: {504, "DEADLINE_EXCEEDED"}, codes.NotFound: {404, "NOT_FOUND"}, codes.AlreadyExists: {409, "ALREADY_EXISTS"},
		codes.PermissionDenied: {403, "PERMISSION_DENIED"}, codes.ResourceExhausted: {429, "RESOURCE_EXHAUSTED"},
		codes.FailedPrecondition: {400, "FAILED_PRECONDITION"}, codes.Aborted: {409, "ABORTED"}, codes.OutOfRange: {400, "OUT_OF_RANGE"},
		codes.Unimplemented: {501, "UNIMPLEMENTED"}, codes.Internal: {500, "INTERNAL"}, codes.Unavailable: {503, "UNAVAILABLE"},
		codes.DataLoss: {500, "DATA_LOSS"}, codes.Unauthenticated: {401, "UNAUTHENTICATED"},
	}
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		st, err := status.New(c, "why").WithDetails(&errdetails.ErrorInfo{Reason: "R", Domain: "d"})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		newHandler(t, &recorder{err: st.Err()}, Options{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v2/projects/p/instances", nil))
		e := decodeError(t, w.Result())
		if w.Code != want[c].http || e.Code != w.Code || e.Status != want[c].name || e.Message != "why" {
			t.Errorf("%v: %d %+v", c, w.Code, e)
		}
		if len(e.Details) != 1 || e.Details[0]["@type"] != "type.googleapis.com/google.rpc.ErrorInfo" || e.Details[0]["reason"] != "R" {
			t.Errorf("%v: details %v", c, e.Details)
		}
		if (w.Header().Get("WWW-Authenticate") != "") != (c == codes.Unauthenticated) {
			t.Errorf("%v: headers %v", c, w.Header())
		}
	}
}

func TestAnswers(t *testing.T) {
	c := &recorder{resp: &adminpb.Instance{Name: "n", State: adminpb.Instance_READY}}
	h := newHandler(t, c, Options{})
	for query, want := range map[string]string{
		"":                                   "{\n  \"name\": \"n\",\n  \"state\": \"READY\"\n}\n",
		"?$alt=json;enum-encoding=int":       "{\n  \"name\": \"n\",\n  \"state\": 1\n}\n",
		"?%24alt=json%3Benum-encoding%3Dint": "{\n  \"name\": \"n\",\n  \"state\": 1\n}\n",
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v2/projects/p/instances/i"+query, nil))
		if w.Body.String() != want {
			t.Errorf("%q: got %s", query, w.Body)
		}
	}
}

// TestSlowBody sends half of a body: the client is told, and its turn is given
// to the next.
func TestSlowBody(t *testing.T) {
	c := &recorder{}
	s := httptest.NewServer(newHandler(t, c, Options{BodyTimeout: 50 * time.Millisecond, Concurrent: 1}))
	defer s.Close()
	in, out := io.Pipe()
	defer out.Close()
	go func() { _, _ = out.Write([]byte(`{"instanceId":`)) }()
	start := time.Now()
	resp, err := http.Post(s.URL+"/v2/projects/p/instances", "application/json", in)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if e := decodeError(t, resp); e.Code != 504 || time.Since(start) > time.Minute {
		t.Errorf("got %+v after %v", e, time.Since(start))
	}
	next, err := http.Get(s.URL + "/v2/projects/p/instances")
	if err != nil {
		t.Fatal(err)
	}
	defer next.Body.Close()
	if next.StatusCode != http.StatusOK {
		t.Errorf("the next got %d", next.StatusCode)
	}
}

// A stalled is the answer of a client that reads nothing until it is released.
type stalled struct {
	*httptest.ResponseRecorder
	writing chan struct{}
	release chan struct{}
}

func (s *stalled) Write(b []byte) (int, error) {
	close(s.writing)
	<-s.release
	return s.ResponseRecorder.Write(b)
}

// TestTurnEndsBeforeTheAnswer: a client that does not read its answer holds up nobody.
func TestTurnEndsBeforeTheAnswer(t *testing.T) {
	h := newHandler(t, &recorder{}, Options{Concurrent: 1, TurnTimeout: 5 * time.Second})
	get := func(w http.ResponseWriter) {
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v2/projects/p/instances", nil))
	}
	first := &stalled{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	done := make(chan struct{})
	go func() { defer close(done); get(first) }()
	<-first.writing
	w := httptest.NewRecorder()
	get(w)
	if w.Code != http.StatusOK {
		t.Errorf("the next got %d %s", w.Code, w.Body)
	}
	close(first.release)
	<-done
}

// TestTurnsAreBounded: a request whose turn does not come is refused, and told when to come
// back.
func TestTurnsAreBounded(t *testing.T) {
	h := newHandler(t, &recorder{}, Options{Concurrent: 1, TurnTimeout: 10 * time.Millisecond})
	h.turns <- struct{}{}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v2/projects/p/instances", nil))
	if e := decodeError(t, w.Result()); w.Code != http.StatusServiceUnavailable || len(e.Details) != 2 || e.Details[1]["retryDelay"] != "1s" {
		t.Errorf("%d %+v", w.Code, e)
	}
	<-h.turns
	w = httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v2/projects/p/instances", nil))
	if w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestTemplates(t *testing.T) {
	for _, bad := range []string{"", "v2", "/v2/{name", "/v2/name}", "/v2/{name=a/{b}}", "/v2/{NAME}"} {
		if _, err := compile(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	for _, tc := range []struct {
		template, path string
		want           string // values, "-" for no match
	}{
		{"/v1/{a}", "/v1/x", "x"},
		{"/v1/{a}", "/v1/x/y", "-"},
		{"/v1/{a}", "/v1/x:y", "-"},
		{"/v1/{a=x/*}:do", "/v1/x/y:do", "x/y"},
		{"/v1/{a=x/*}:do", "/v1/x/y:undo", "-"},
		{"/v1/{a=**}:do", "/v1/x/y:z/w:do", "x/y:z/w"},
		{"/v1/{a=x/**}/z", "/v1/x/y/z/z", "x/y/z"},
		{"/v1/{a=x/**}", "/v1/x", "-"},
		{"/v1/{a=*}/b/{c=*}", "/v1/1/b/2", "1 2"},
		{"/v1/b.c", "/v1/bxc", "-"},
		{"/v1/{a}", "/v1/%zz", "!"},
	} {
		tmpl, err := compile(tc.template)
		if err != nil {
			t.Fatal(err)
		}
		values, ok, err := tmpl.match(tc.path)
		got := strings.Join(values, " ")
		switch {
		case err != nil:
			got = "!"
		case !ok:
			got = "-"
		}
		if got != tc.want {
			t.Errorf("%s of %s: got %q, want %q", tc.path, tc.template, got, tc.want)
		}
	}
}

// FuzzHandler looks for requests that do not get one well-formed answer.
func FuzzHandler(f *testing.F) {
	f.Add("GET", "/v2/projects/p/instances/i/tables", "view=FULL&pageSize=1&$alt=json;enum-encoding=int", "")
	f.Add("POST", "/v2/projects/p/instances", "", `{"instanceId":"i","clusters":{"c":{"serveNodes":1}}}`)
	f.Add("PATCH", "/v2/projects/p/instances/i", "updateMask=a_b,cD&instance.name=x", `{"createTime":"2026-01-01T00:00:00Z"}`)
	f.Add("GET", "/v2/projects/p/instances/i/clusters/c/hotTablets", "startTime=2026-01-02T03:04:05Z&endTime.seconds=1", "")
	f.Add("POST", "/v1/a/b%2F%zz:getIamPolicy", "", `{"options":null}`)
	h := newHandler(f, &recorder{}, Options{})
	f.Fuzz(func(t *testing.T, method, path, query, body string) {
		r := httptest.NewRequest(http.MethodGet, "/", strings.NewReader(body))
		r.Method, r.URL = method, &url.URL{Path: path, RawPath: path, RawQuery: query}
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if !json.Valid(w.Body.Bytes()) {
			t.Errorf("%d %q", w.Code, w.Body)
		}
		if w.Code == 500 {
			t.Errorf("%s", w.Body)
		}
	})
}

func BenchmarkGet(b *testing.B) {
	h := newHandler(b, &recorder{}, Options{})
	for b.Loop() {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/v2/projects/p/instances/i/tables/t/schemaBundles/b?alt=json", nil))
	}
}
