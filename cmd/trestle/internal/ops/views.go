package ops

import (
	"context"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/matview"
	"github.com/trestledb/trestle/engine/schema"
)

// A ViewKeeper is an Operator that keeps materialized views: see backend.MaterializedViews.
type ViewKeeper interface {
	ListViews(ctx context.Context, instance string) ([]*schema.Table, error)
	ViewStatus(ctx context.Context, name string) (*matview.Status, error)
	WaitView(ctx context.Context, name string) error
	// CheckView evaluates the query of the view whose rows' table is t anew, reports
	// each row that differs, and returns how many rows the view should have.
	CheckView(ctx context.Context, t *schema.Table, report func(ViewFinding)) (rows int, err error)
}

// The RPCs that ask for what requests about a view do: materializedViews.get, and update to
// have its query evaluated, which shows keys.
const (
	toSeeView   = adminpb.BigtableInstanceAdmin_GetMaterializedView_FullMethodName
	toCheckView = adminpb.BigtableInstanceAdmin_UpdateMaterializedView_FullMethodName
)

// The phases of a View.
const (
	ViewBuilding = "building" // looks at all rows of its source
	ViewBehind   = "behind"   // a part of it is not kept up to date at present
	ViewLive     = "live"
)

// View is a materialized view and how far it is.
type View struct {
	View   string `json:"view"`
	Source string `json:"source"`
	Phase  string `json:"phase"`
	// LagSeconds is for how long the oldest change has waited that the view does not show.
	LagSeconds float64 `json:"lag_seconds"`
	// Tablets are the parts in which the view is kept up to date.
	Tablets    int   `json:"tablets"`
	RowBytes   int64 `json:"row_bytes"`
	StateBytes int64 `json:"state_bytes"`
	// FailedRows counts evaluations of rows that failed, since the servers started.
	FailedRows  int64  `json:"failed_rows"`
	LastFailure string `json:"last_failure,omitempty"`
	// Errors counts what else failed and was tried again.
	Errors    int64  `json:"errors"`
	LastError string `json:"last_error,omitempty"`
}

// ViewList is the answer of GET /admin/views.
type ViewList struct {
	Views []View `json:"views"`
}

// ViewChecked is the answer of POST /admin/views/check, whose body is a ViewWait.
type ViewChecked struct {
	View string `json:"view"`
	// Rows is how many rows the view should have, Differ how many are not as they should
	// be, of which Findings tells maxViewFindings at most.
	Rows     int           `json:"rows"`
	Differ   int           `json:"differ"`
	Findings []ViewFinding `json:"findings"`
}

// ViewFinding is a row that is not as a view's query makes it.
type ViewFinding struct {
	Where string `json:"where"`
	What  string `json:"what"`
	Do    string `json:"do"`
}

const maxViewFindings = 1000

// ViewWait is the body of POST /admin/views/wait.
type ViewWait struct {
	View string `json:"view"`
}

func (q *request) views() (ViewKeeper, error) {
	if v, ok := q.op.(ViewKeeper); ok {
		return v, nil
	}
	return nil, fault.New(fault.Unimplemented, "this server does not keep materialized views")
}

// listViews shows the materialized views that the caller may know of.
func (a *Admin) listViews(q *request) (any, error) {
	op, err := q.views()
	if err != nil {
		return nil, err
	}
	all, err := op.ListViews(q.Context(), "projects")
	if err != nil {
		return nil, err
	}
	out := ViewList{Views: []View{}}
	for _, t := range all {
		held, err := q.who.TestPermissions(q.caller.Context(), t.Name, []string{"bigtable.materializedViews.get"})
		if err != nil {
			return nil, err
		}
		if len(held) == 0 {
			continue
		}
		s, err := op.ViewStatus(q.Context(), t.Name)
		if fault.KindOf(err) == fault.NotFound {
			continue // deleted a moment ago
		}
		if err != nil {
			return nil, err
		}
		out.Views = append(out.Views, viewOf(t, s))
	}
	return out, nil
}

func viewOf(t *schema.Table, s *matview.Status) View {
	v := View{View: t.Name, Source: t.View.Source, Phase: ViewLive, LagSeconds: float64(s.Lag.Round(time.Millisecond).Milliseconds()) / 1000, Tablets: s.Tablets, RowBytes: s.RowBytes,
		StateBytes: s.StateBytes, FailedRows: s.Failed, LastFailure: s.LastFailure, Errors: s.Errors, LastError: s.LastError}
	switch {
	case s.Behind > 0:
		v.Phase = ViewBehind
	case s.Building > 0:
		v.Phase = ViewBuilding
	}
	return v
}

// waitView answers once a view shows everything that was acknowledged before.
func (a *Admin) waitView(q *request) (any, error) {
	op, name, err := q.view()
	if err != nil {
		return nil, err
	}
	if err := op.WaitView(q.Context(), name); err != nil {
		return nil, err
	}
	return ViewWait{View: name}, nil
}

// checkView compares a view with its query. One is compared at a time: that takes memory.
func (a *Admin) checkView(q *request) (any, error) {
	op, name, err := q.view()
	if err != nil {
		return nil, err
	}
	instance, _, _ := strings.Cut(name, "/materializedViews/")
	all, err := op.ListViews(q.Context(), instance)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(t *schema.Table) bool { return t.Name == name })
	if i < 0 {
		return nil, fault.New(fault.NotFound, "Materialized view not found: %s", name)
	}
	if !a.checking.TryLock() {
		return nil, fault.New(fault.FailedPrecondition, "a view is being checked already: wait until that is done")
	}
	defer a.checking.Unlock()
	out := ViewChecked{View: name, Findings: []ViewFinding{}}
	out.Rows, err = op.CheckView(q.Context(), all[i], func(f ViewFinding) {
		if out.Differ++; out.Differ <= maxViewFindings {
			out.Findings = append(out.Findings, f)
		}
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// view returns the full name of the view that the body names.
func (q *request) view() (ViewKeeper, string, error) {
	var in ViewWait
	if err := q.decode(&in); err != nil {
		return nil, "", err
	}
	op, err := q.views()
	if err != nil {
		return nil, "", err
	}
	name, err := q.viewName(op, in.View)
	return op, name, err
}

// viewName returns the full name of a view that the caller may know of, given in full or by its
// last part.
func (q *request) viewName(op ViewKeeper, name string) (string, error) {
	if strings.HasPrefix(name, "projects/") {
		return name, q.caller.On(name)
	}
	all, err := op.ListViews(q.Context(), "projects")
	full := ""
	for _, t := range all {
		if !strings.HasSuffix(t.Name, "/materializedViews/"+name) {
			continue
		}
		if full != "" {
			err = fault.New(fault.Invalid, "several materialized views are called %s: give the full name", name)
		}
		full = t.Name
	}
	switch {
	case err != nil:
	case full == "":
		err = fault.New(fault.NotFound, "Materialized view not found: %s", name)
	default:
		err = q.caller.On(full)
	}
	if err != nil {
		return "", q.caller.Missing(name, err)
	}
	return full, nil
}
