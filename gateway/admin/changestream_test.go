package admin

import (
	"context"
	"testing"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trestledb/trestle/engine/schema"
)

// What change_stream_config says is what the engine acts on, and each enabling is a
// life of its own.
func TestChangeStreamLives(t *testing.T) {
	s := strict(t)
	ctx := t.Context()
	config := func(d time.Duration) *adminpb.ChangeStreamConfig {
		return &adminpb.ChangeStreamConfig{RetentionPeriod: durationpb.New(d)}
	}
	must(s.CreateTable(ctx, &adminpb.CreateTableRequest{Parent: testInstance, TableId: "s", Table: &adminpb.Table{ChangeStreamConfig: config(2*day + 1500*time.Nanosecond)}}))(t)
	name := testInstance + "/tables/s"
	stored := func() *schema.Stream {
		t.Helper()
		tbl := must(s.b.Table(ctx, name))(t)
		shown := must(s.GetTable(ctx, &adminpb.GetTableRequest{Name: name}))(t).GetChangeStreamConfig()
		if (shown != nil) != (tbl.Stream != nil) || shown != nil && shown.RetentionPeriod.AsDuration() != tbl.Stream.Retention {
			t.Fatalf("shown %v, stored %+v", shown, tbl.Stream)
		}
		return tbl.Stream
	}
	update := func(c *adminpb.ChangeStreamConfig, path string) *schema.Stream {
		t.Helper()
		must(s.UpdateTable(ctx, &adminpb.UpdateTableRequest{Table: &adminpb.Table{Name: name, ChangeStreamConfig: c}, UpdateMask: mask(path)}))(t)
		return stored()
	}
	first := stored()
	if first == nil || first.Life == 0 || first.Retention != 2*day+time.Microsecond || first.Since.IsZero() {
		t.Fatalf("%+v", first)
	}
	if longer := update(config(4*day), "change_stream_config"); longer.Life != first.Life || longer.Retention != 4*day || !longer.Since.Equal(first.Since) {
		t.Errorf("%+v after %+v", longer, first)
	}
	if other := update(nil, "deletion_protection"); other == nil || other.Life != first.Life {
		t.Errorf("%+v after %+v", other, first)
	}
	checkRefusals(t, s, []refusal{{"stream on", func(ctx context.Context, s *server) error {
		return drop(s.DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: name}))
	}, codes.FailedPrecondition, "Disable the change stream of table " + name + " first", "name"}})
	lives := map[uint64]bool{first.Life: true}
	for range 3 {
		if off := update(nil, "change_stream_config"); off != nil {
			t.Errorf("%+v", off)
		}
		again := update(config(day), "change_stream_config.retention_period")
		if again == nil || lives[again.Life] || again.Since.Before(first.Since) {
			t.Fatalf("%+v after %v", again, lives)
		}
		lives[again.Life] = true
	}
	// Earlier versions kept the setting and nothing else. It enables nothing, neither
	// as it is nor when something else is set.
	old, err := proto.Marshal(&adminpb.Table{ChangeStreamConfig: config(day)})
	if err != nil {
		t.Fatal(err)
	}
	must(s.b.UpdateTable(ctx, name, func(t *schema.Table) error { t.Extra, t.Stream = old, nil; return nil }))(t)
	if on := stored(); on != nil {
		t.Errorf("%+v", on)
	}
	if on := update(nil, "deletion_protection"); on != nil {
		t.Errorf("%+v", on)
	}
	if err := drop(s.DeleteTable(ctx, &adminpb.DeleteTableRequest{Name: name})); err != nil {
		t.Error(err)
	}
}
