package ops

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/tablet"
)

// A Job is something that takes longer than a request should.
type Job struct {
	ID string `json:"id"`
	// What is compact, flush or verify, export or import, or drain.
	What string `json:"what"`
	Selection
	// Backup and Export are those of an export or import.
	Backup string `json:"backup,omitempty"`
	Export string `json:"export,omitempty"`
	// Server is that of a drain, and TabletsLeft how many tablets it still has.
	Server      string   `json:"server,omitempty"`
	TabletsLeft int      `json:"tablets_left,omitempty"`
	State       JobState `json:"state"`
	// BytesDone of BytesTotal are an estimate; both are 0 for a flush.
	BytesDone  int64      `json:"bytes_done"`
	BytesTotal int64      `json:"bytes_total"`
	Started    time.Time  `json:"started"`
	Ended      *time.Time `json:"ended,omitempty"`
	Error      string     `json:"error,omitempty"`
	// Damaged are the SSTables that verify found not to be what was written.
	Damaged []DamagedObject `json:"damaged,omitempty"`
}

// A JobState is how far a job has come.
type JobState string

// The states.
const (
	Running   JobState = "running"
	Done      JobState = "done"
	Failed    JobState = "failed"
	Cancelled JobState = "cancelled"
)

// A DamagedObject is an tablet.ObjectDamage in JSON.
type DamagedObject struct {
	Table  string `json:"table"`
	Tablet string `json:"tablet"`
	Start  string `json:"start"` // of the tablet
	End    string `json:"end"`
	Object string `json:"object"`
	Error  string `json:"error"`
}

// What is kept in memory.
const (
	maxRunning = 4
	maxJobs    = 100
	maxDamaged = 1000 // of one job
)

// jobs are those under way and the last that ended.
type jobs struct {
	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu struct {
		sync.Mutex
		last   int
		closed bool
		list   []*running // oldest first
	}
}

// running is a job that is under way or has ended.
type running struct {
	table  string // its full name, or that of the backup
	cancel context.CancelFunc
	done   chan struct{}

	mu  sync.Mutex
	job Job
}

func (s *jobs) init() { s.ctx, s.cancel = context.WithCancel(context.Background()) }

func (s *jobs) close() {
	s.mu.Lock()
	s.mu.closed = true
	s.mu.Unlock()
	s.cancel()
	s.group.Wait()
}

// start begins a job on the table or backup of a full name. want says what it is.
func (s *jobs) start(want Job, table string, do func(context.Context, *running) error) (*Job, error) {
	return s.begin(want, table, func() error { return nil }, do)
}

// begin is start of a job whose first step the caller waits for: there is no job if
// that fails, and it is not done if there can be no job. A drain that is under way is
// returned in place of another one.
func (s *jobs) begin(want Job, table string, first func() error, do func(context.Context, *running) error) (*Job, error) {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		return nil, fault.New(fault.Unavailable, "the server is stopping")
	}
	n := 0
	for _, j := range s.mu.list {
		switch d := j.describe(); {
		case d.State != Running:
		case d.What != drainJob:
			n++
		case want.What == drainJob && d.Server == want.Server:
			s.mu.Unlock()
			return d, first()
		}
	}
	if n >= maxRunning && want.What != drainJob {
		s.mu.Unlock()
		return nil, fault.New(fault.Aborted, "%d jobs are running already; wait for one or cancel it", n)
	}
	if len(s.mu.list) >= maxJobs {
		if i := slices.IndexFunc(s.mu.list, func(j *running) bool { return j.describe().State != Running }); i >= 0 {
			s.mu.list = slices.Delete(s.mu.list, i, i+1)
		}
	}
	s.mu.last++
	ctx, cancel := context.WithCancel(s.ctx)
	want.ID, want.State, want.Started = strconv.Itoa(s.mu.last), Running, time.Now().UTC()
	j := &running{table: table, cancel: cancel, done: make(chan struct{}), job: want}
	s.mu.list = append(s.mu.list, j)
	begun, failed := make(chan struct{}), false
	s.group.Go(func() {
		defer cancel()
		defer close(j.done)
		if <-begun; !failed {
			j.end(ctx, do(ctx, j))
		}
	})
	s.mu.Unlock()
	defer close(begun)
	if err := first(); err != nil {
		failed = true
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mu.list = slices.DeleteFunc(s.mu.list, func(other *running) bool { return other == j })
		return nil, err
	}
	return j.describe(), nil
}

func (s *jobs) find(id string) *running {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.mu.list {
		if j.job.ID == id { // never changes
			return j
		}
	}
	return nil
}

func (s *jobs) all() []*running {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.list)
}

func (j *running) describe() *Job {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := j.job
	c.Damaged = slices.Clone(c.Damaged)
	return &c
}

func (j *running) report(done, total int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.job.BytesDone, j.job.BytesTotal = max(done, j.job.BytesDone), total
}

// left notes how many tablets a server has that is drained.
func (j *running) left(n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.job.TabletsLeft = n
}

func (j *running) damaged(d tablet.ObjectDamage) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.job.Damaged) < maxDamaged {
		j.job.Damaged = append(j.job.Damaged, DamagedObject{Table: d.Table, Tablet: d.Tablet.String(),
			Start: EscapeKey(d.Rows.Start), End: EscapeKey(d.Rows.End), Object: d.Object, Error: d.Err.Error()})
	}
}

func (j *running) end(ctx context.Context, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now().UTC()
	j.job.Ended = &now
	switch {
	case err == nil:
		j.job.State = Done
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		j.job.State, j.job.Error = Cancelled, "it was cancelled"
	default:
		j.job.State, j.job.Error = Failed, err.Error()
	}
}
