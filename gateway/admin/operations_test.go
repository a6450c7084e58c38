package admin

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/gateway/backend"
)

func (s *server) operations(t testing.TB, req *longrunningpb.ListOperationsRequest) []string {
	t.Helper()
	var names []string
	for {
		l := must(s.ops.ListOperations(t.Context(), req))(t)
		for _, op := range l.Operations {
			names = append(names, op.Name)
		}
		if l.NextPageToken == "" {
			return names
		}
		req.PageToken = l.NextPageToken
	}
}

func TestOperations(t *testing.T) {
	c := newClock()
	b := model.New(model.Options{})
	s := serve(t, b, Options{Now: c.now})
	ctx := t.Context()
	s.createInstance(t, "inst-one", "cluster-one")
	s.createInstance(t, "inst-one-b", "cluster-one")
	must(s.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: testInstance, TableId: "t"}))(t)
	var made []*longrunningpb.Operation
	for i := range 5 {
		c.add(time.Second)
		made = append(made, must(s.UpdateTable(ctx, &adminpb.UpdateTableRequest{
			Table: &adminpb.Table{Name: testTable, DeletionProtection: i%2 == 0}, UpdateMask: mask("deletion_protection"),
		}))(t))
	}

	// A gateway that starts later on the same store knows them.
	later := serve(t, b, Options{Now: c.now})
	for _, op := range made {
		if got := must(later.ops.GetOperation(ctx, &longrunningpb.GetOperationRequest{Name: op.Name}))(t); !proto.Equal(got, op) {
			t.Errorf("got %v, want %v", got, op)
		}
	}

	all := s.operations(t, &longrunningpb.ListOperationsRequest{Name: "operations/projects/p", PageSize: 2})
	if len(all) != 7 || len(s.operations(t, &longrunningpb.ListOperationsRequest{Name: "operations/projects/p"})) != 7 {
		t.Errorf("listed %v", all)
	}
	for _, l := range []struct {
		name, filter string
		want         int
	}{
		{"operations/projects/p/operations", "", 7},
		{"operations/projects/q", "", 0},
		{"operations/" + testInstance, "", 6},
		{"operations/" + testInstance + "-b", "", 1},
		{"operations/" + testTable, "", 5},
		{"operations/" + testTable + "/operations", "", 5},
		{"operations/projects/p", "done=true", 7},
		{"operations/projects/p", "done:false", 0},
		{"operations/projects/p", "NOT done = true", 0},
		{"operations/projects/p", "-done=true", 0},
		{"operations/projects/p", "error:*", 0},
		{"operations/projects/p", "response:*", 7},
		{"operations/projects/p", `metadata.@type:"UpdateTableMetadata"`, 5},
		{"operations/projects/p", "metadata.@type=type.googleapis.com/google.bigtable.admin.v2.UpdateTableMetadata", 5},
		{"operations/projects/p", "metadata.@type:UpdateTableMetadata OR metadata.@type:CreateInstanceMetadata", 7},
		{"operations/projects/p", "metadata.@type:UpdateTableMetadata AND response.deletion_protection = true", 3},
		{"operations/projects/p", "metadata.@type:updatetablemetadata response.deletionProtection=true", 3},
		{"operations/projects/p", `metadata.start_time > "2026-01-02T03:04:07Z"`, 3},
		{"operations/projects/p", `metadata.start_time>=2026-01-02T03:04:07Z AND metadata.start_time<2026-01-02T03:04:09Z`, 2},
		{"operations/projects/p", `(metadata.name:tables/t) response.granularity=MILLIS`, 5},
		{"operations/projects/p", `response.granularity!=MILLIS`, 2},
		{"operations/projects/p", `name:"tables/t/"`, 5},
		{"operations/projects/p", `metadata.colour = red`, 0},
		{"operations/projects/p", `NOT (name:tables OR name:inst-one-b)`, 1},
	} {
		if got := s.operations(t, &longrunningpb.ListOperationsRequest{Name: l.name, Filter: l.filter}); len(got) != l.want {
			t.Errorf("%s %q: %d operations, want %d", l.name, l.filter, len(got), l.want)
		}
	}

	name := made[0].Name
	must(s.ops.CancelOperation(ctx, &longrunningpb.CancelOperationRequest{Name: name}))(t)
	if got := must(s.ops.GetOperation(ctx, &longrunningpb.GetOperationRequest{Name: name}))(t); !proto.Equal(got, made[0]) {
		t.Errorf("cancelling changed it: %v", got)
	}
	must(s.ops.DeleteOperation(ctx, &longrunningpb.DeleteOperationRequest{Name: name}))(t)
	token := must(s.ops.ListOperations(ctx, &longrunningpb.ListOperationsRequest{Name: "operations/projects/p", PageSize: 1}))(t).NextPageToken
	get := func(name string) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			return drop(s.ops.GetOperation(ctx, &longrunningpb.GetOperationRequest{Name: name}))
		}
	}
	list := func(r *longrunningpb.ListOperationsRequest) func(context.Context, *server) error {
		return func(ctx context.Context, s *server) error {
			if r.Name == "" {
				r.Name = "operations/projects/p"
			}
			return drop(s.ops.ListOperations(ctx, r))
		}
	}
	const invalid = codes.InvalidArgument
	rs := []refusal{
		{"get deleted", get(name), codes.NotFound, "Operation not found: " + name, ""},
		{"get malformed", get("projects/p/operations/1"), invalid, "When parsing 'projects/p/operations/1'", "name"},
		{"get record", get("secrets/tokens"), invalid, "When parsing", "name"},
		{"cancel missing", func(ctx context.Context, s *server) error {
			return drop(s.ops.CancelOperation(ctx, &longrunningpb.CancelOperationRequest{Name: name}))
		}, codes.NotFound, "Operation not found", ""},
		{"delete missing", func(ctx context.Context, s *server) error {
			return drop(s.ops.DeleteOperation(ctx, &longrunningpb.DeleteOperationRequest{Name: name}))
		}, codes.NotFound, "Operation not found", ""},
		{"wait", func(ctx context.Context, s *server) error {
			return drop(s.ops.WaitOperation(ctx, &longrunningpb.WaitOperationRequest{Name: name}))
		}, codes.Unimplemented, "WaitOperation", ""},
		{"list malformed", list(&longrunningpb.ListOperationsRequest{Name: "projects/p"}), invalid, "When parsing 'projects/p'", "name"},
		{"list nothing", list(&longrunningpb.ListOperationsRequest{Name: "operations/projects/"}), invalid, "When parsing", "name"},
		{"list negative", list(&longrunningpb.ListOperationsRequest{PageSize: -1}), invalid, "Must not be negative", "page_size"},
		{"list garbage", list(&longrunningpb.ListOperationsRequest{PageToken: "x"}), invalid, "Not a token", "page_token"},
		{"list with a long filter", list(&longrunningpb.ListOperationsRequest{Filter: strings.Repeat("done:1 ", 1<<18)}), invalid, "at most 16384 bytes", "filter"},
		{"token of another filter", list(&longrunningpb.ListOperationsRequest{PageToken: token, Filter: "done=true"}), invalid, "Not a token", "page_token"},
	}
	for filter, text := range map[string]string{
		"colour=red": "unknown field 'colour'", "done": "expected an operator", "done=": "expected a value", "done=true)": "unexpected ')'",
		"(done=true": "missing ')'", `name="x`: "unterminated string", "done ! true": "expected an operator", "AND": "unknown field", "done=true OR": "unknown field ''",
		"=": "unknown field", "done==true": "expected a value", strings.Repeat("(", 100): "nested too deeply", "done = (": "expected a value",
	} {
		rs = append(rs, refusal{"filter " + filter, list(&longrunningpb.ListOperationsRequest{Filter: filter}), invalid, text, "filter"})
	}
	checkRefusals(t, s, rs)
}

// Finished operations stay for a week, and not for ever.
func TestOperationsArePurged(t *testing.T) {
	c := newClock()
	s := serve(t, model.New(model.Options{}), Options{Now: c.now})
	s.createInstance(t, "inst-one", "cluster-one")
	rename := func(i int) {
		must(s.inst.PartialUpdateInstance(t.Context(), &adminpb.PartialUpdateInstanceRequest{
			Instance: &adminpb.Instance{Name: testInstance, DisplayName: fmt.Sprint("name ", i)}, UpdateMask: mask("display_name"),
		}))(t)
	}
	count := func() int {
		return len(s.operations(t, &longrunningpb.ListOperationsRequest{Name: "operations/projects/p"}))
	}
	c.add(keepOperations - time.Hour)
	rename(1)
	if n := count(); n != 2 {
		t.Errorf("%d operations after less than a week", n)
	}
	c.add(2 * time.Hour)
	rename(2)
	if n := count(); n != 2 {
		t.Errorf("%d operations after a week", n)
	}
}

// lossyRecords loses what the next change of a record answers, or the change.
type lossyRecords struct {
	backend.Backend
	answer, change atomic.Bool
}

func (b *lossyRecords) PutRecord(ctx context.Context, key string, value []byte, version uint64) (uint64, error) {
	if b.change.Swap(false) {
		return 0, fault.New(fault.Unavailable, "lost on its way")
	}
	v, err := b.Backend.PutRecord(ctx, key, value, version)
	if b.answer.Swap(false) {
		return 0, fault.New(fault.Unavailable, "lost on its way back")
	}
	return v, err
}

// TestLostAnswers: an operation is running for as long as its server says so, and ends as
// it does there, whatever answers of the records are lost.
func TestLostAnswers(t *testing.T) {
	for name, lose := range map[string]func(*lossyRecords){
		"nothing":  func(*lossyRecords) {},
		"a change": func(b *lossyRecords) { b.change.Store(true) },
		"a reply":  func(b *lossyRecords) { b.answer.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, b := newClock(), &lossyRecords{Backend: model.New(model.Options{})}
			a, other := New(b, Options{Now: c.now}), New(b.Backend, Options{Now: c.now})
			defer a.Close()
			ctx, end := t.Context(), make(chan struct{})
			op := must(a.begin(ctx, testInstance, &adminpb.CreateInstanceMetadata{}, func(ctx context.Context, _ string) (proto.Message, proto.Message, error) {
				select {
				case <-end:
				case <-ctx.Done():
				}
				return &adminpb.CreateInstanceMetadata{}, &adminpb.Instance{Name: testInstance}, nil
			}, nil))(t)
			running := a.tasks.get(op.Name)
			_, version, err := other.storedOperation(ctx, op.Name)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				c.add(taskLease / 3)
				lose(b)
				version = a.extend(ctx, op, version)
				c.add(taskLease / 3)
				version = a.extend(ctx, op, version)
				if now, _, err := other.storedOperation(ctx, op.Name); err != nil || now.GetDone() {
					t.Fatalf("%v, %v while it runs", now, err)
				}
			}
			lose(b)
			close(end)
			<-running.done
			now, _, err := other.storedOperation(ctx, op.Name)
			if err != nil || !now.GetDone() || now.GetResponse() == nil {
				t.Errorf("%v, %v in the end", now, err)
			}
		})
	}
}
