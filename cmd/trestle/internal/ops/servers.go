package ops

import (
	"context"

	"github.com/trestledb/trestle/engine/fault"
)

// A Fleet is the part of an Operator that is about tablet servers.
type Fleet interface {
	Servers(ctx context.Context) ([]TabletServer, error)
	// Drain begins to move all tablets away from a server, which gets none from then
	// on; AwaitDrained waits until it has none, and calls left with their number. Undrain
	// lets it have tablets again.
	Drain(ctx context.Context, server string) error
	AwaitDrained(ctx context.Context, server string, left func(int)) error
	Undrain(ctx context.Context, server string) error
}

// A TabletServer is one that lives.
type TabletServer struct {
	Name        string `json:"name"`
	Incarnation uint64 `json:"incarnation"`
	Address     string `json:"address"`
	Draining    bool   `json:"draining"`
	Tablets     int    `json:"tablets"`
	// Bytes are those of the tablets' SSTables and memtables.
	Bytes int64 `json:"bytes"`
	// Rates are rows of the last seconds.
	RowsReadPerSecond    float64 `json:"rows_read_per_second"`
	RowsWrittenPerSecond float64 `json:"rows_written_per_second"`
	// Error is why the server did not answer; what only it knows is zero then.
	Error string `json:"error,omitempty"`
}

// ServerList is the answer of GET /admin/servers.
type ServerList struct {
	Servers []TabletServer `json:"servers"`
}

// ServerName is the body of a request to drain a server, or to end that.
type ServerName struct {
	Server string `json:"server"`
}

// onServers returns nil if the caller may do what it asks for to servers, which are
// the system's as METADATA is.
func (q *request) onServers() error { return q.caller.On(resourceOf("")) }

func (a *Admin) listServers(q *request) (any, error) {
	if err := q.onServers(); err != nil {
		return nil, err
	}
	servers, err := q.op.Servers(q.Context())
	if err != nil {
		return nil, err
	}
	return ServerList{append([]TabletServer{}, servers...)}, nil
}

// server reads the name of a server to which the caller may do what it asks for.
func (q *request) server() (string, error) {
	var s ServerName
	if err := q.decode(&s); err != nil {
		return "", err
	}
	if s.Server == "" {
		return "", fault.New(fault.Invalid, "name a server")
	}
	q.caller.Note("server", s.Server)
	return s.Server, q.onServers()
}

// drain starts a job that ends when the server has no tablets, or returns the one
// that is under way.
func (a *Admin) drain(q *request) (any, error) {
	name, err := q.server()
	if err != nil {
		return nil, err
	}
	op := q.op
	return a.jobs.begin(Job{What: drainJob, Server: name}, "", func() error { return op.Drain(q.Context(), name) },
		func(ctx context.Context, j *running) error { return op.AwaitDrained(ctx, name, j.left) })
}

// drainJob is Job.What of a drain. It only waits, so it does not count as running
// beside other jobs.
const drainJob = "drain"

func (a *Admin) undrain(q *request) (any, error) {
	name, err := q.server()
	if err == nil {
		err = q.op.Undrain(q.Context(), name)
	}
	return ServerName{name}, err
}
