package ops

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/trestledb/trestle/engine/fault"
)

// Self is what a process can tell of itself.
type Self struct {
	// Name is that of its tablet server or, without one, what else it is called.
	Name string
	// Memory is the setting of that name in bytes, 0 if it has none.
	Memory int64
	// Settings has a line "name: value" for each.
	Settings string
	// Certificates are PEM files whose first certificates this process shows to others.
	Certificates []string
	Metrics      *Metrics
	Health       *Health
	// Logs returns the last lines of its log, with what may tell rows' keys if keys is set;
	// nil if they are not kept.
	Logs func(keys bool) []byte
}

// A Certificate is one that a process shows.
type Certificate struct {
	File     string    `json:"file"`
	NotAfter time.Time `json:"not_after"`
	// Error is why it is not known.
	Error string `json:"error,omitempty"`
}

// A Process is what trestle doctor is told of a process.
type Process struct {
	Name     string    `json:"name"`
	Version  string    `json:"version"`
	Revision string    `json:"revision"`
	Go       string    `json:"go"`
	PID      int       `json:"pid"`
	Now      time.Time `json:"now"`
	// OffSeconds is by how much its clock is ahead of that of the process which asked it,
	// give or take WaitSeconds, half of the time that the question took.
	OffSeconds  float64 `json:"off_seconds"`
	WaitSeconds float64 `json:"wait_seconds"`
	OpenFiles   int64   `json:"open_files"`
	MaxFiles    int64   `json:"max_files"`
	// MemoryBytes is what it takes, MemorySetting what it was told to take.
	MemoryBytes   int64 `json:"memory_bytes"`
	MemorySetting int64 `json:"memory_setting"`
	// Syncs are those of the commit log.
	Syncs         uint64        `json:"syncs"`
	SyncSeconds   float64       `json:"sync_seconds"`
	Corruptions   int64         `json:"corruptions"`
	DiskFreeBytes int64         `json:"disk_free_bytes"`
	DiskUsedBytes int64         `json:"disk_used_bytes"`
	Certificates  []Certificate `json:"certificates"`
	Ready         bool          `json:"ready"`
	// Health are the lines of /readyz.
	Health []string `json:"health"`
	// Error is why it did not answer.
	Error string `json:"error,omitempty"`
}

// ShowSelf makes the service tell of its own process.
func (a *Admin) ShowSelf(s *Self) { a.self.Store(s) }

// describe tells of the process.
func (s *Self) describe() (Process, error) {
	p := Process{Name: s.Name, PID: os.Getpid(), Now: time.Now(), MemorySetting: s.Memory, Certificates: []Certificate{}, Health: []string{}}
	p.Version, p.Go, p.Revision = BuildInfo()
	families, err := s.Metrics.Registry.Gather()
	if err != nil && len(families) == 0 {
		return p, err
	}
	values := map[string]*int64{"process_open_fds": &p.OpenFiles, "process_max_fds": &p.MaxFiles, "process_resident_memory_bytes": &p.MemoryBytes,
		"bigtable_corruption_total": &p.Corruptions, "bigtable_disk_free_bytes": &p.DiskFreeBytes, "bigtable_disk_used_bytes": &p.DiskUsedBytes}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if to := values[f.GetName()]; to != nil {
				*to += int64(m.GetGauge().GetValue() + m.GetCounter().GetValue())
			}
			if f.GetName() == "bigtable_wal_sync_seconds" {
				p.Syncs, p.SyncSeconds = m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum()
			}
		}
	}
	for _, file := range s.Certificates {
		p.Certificates = append(p.Certificates, certificate(file))
	}
	var lines string
	lines, p.Ready = s.Health.Report()
	p.Health = append(p.Health, strings.FieldsFunc(lines, func(r rune) bool { return r == '\n' })...)
	return p, nil
}

func certificate(file string) (c Certificate) {
	c.File = file
	b, err := os.ReadFile(file)
	if err != nil {
		c.Error = err.Error()
		return c
	}
	block, rest := pem.Decode(b)
	for block != nil && block.Type != "CERTIFICATE" { // the key may be in the same file
		block, rest = pem.Decode(rest)
	}
	if block == nil {
		c.Error = "it has no certificate in PEM"
		return c
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		c.Error = err.Error()
		return c
	}
	c.NotAfter = cert.NotAfter
	return c
}

// Bounds of what is collected of a process.
const (
	maxProfile = 30 * time.Second
	maxStacks  = 4 << 20
)

// A Collection is what trestle debug zip has of a process, by the names of files.
type Collection struct {
	Name  string            `json:"name"`
	Files map[string][]byte `json:"files,omitempty"`
	// Error is why there is nothing, or not all.
	Error string `json:"error,omitempty"`
}

// A collecting says what is collected.
type collecting struct {
	// Seconds are those for which the processors are profiled, if they are more than 0.
	Seconds int `json:"seconds"`
	// Keys says that rows' keys may be in it.
	Keys bool `json:"keys"`
}

// collect gathers what may explain what the process does.
func (s *Self) collect(ctx context.Context, what collecting) Collection {
	c := Collection{Name: s.Name, Files: map[string][]byte{"settings.txt": []byte(s.Settings)}}
	failed := func(what string, err error) {
		if err != nil {
			c.Error += what + ": " + err.Error() + "\n"
		}
	}
	p, err := s.describe()
	failed("process", err)
	if !what.Keys {
		p.Health = keyless(p.Health)
	}
	if b, err := json.MarshalIndent(p, "", "  "); err == nil {
		c.Files["process.json"] = b
	}
	var metrics bytes.Buffer
	families, err := s.Metrics.Registry.Gather()
	failed("metrics", err)
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&metrics, f); err != nil {
			failed("metrics", err)
			break
		}
	}
	c.Files["metrics.txt"] = metrics.Bytes()
	stacks := make([]byte, maxStacks)
	c.Files["stacks.txt"] = stacks[:runtime.Stack(stacks, true)]
	var heap bytes.Buffer
	failed("heap", pprof.Lookup("heap").WriteTo(&heap, 0))
	c.Files["heap.pprof"] = heap.Bytes()
	if s.Logs != nil {
		c.Files["log.txt"] = s.Logs(what.Keys)
	}
	if what.Seconds > 0 {
		var cpu bytes.Buffer
		if err := pprof.StartCPUProfile(&cpu); err != nil {
			failed("profile", err)
			return c
		}
		select {
		case <-time.After(min(time.Duration(what.Seconds)*time.Second, maxProfile)):
		case <-ctx.Done():
		}
		pprof.StopCPUProfile()
		c.Files["cpu.pprof"] = cpu.Bytes()
	}
	return c
}

// keyless returns lines of /readyz without what says why, which may name rows.
func keyless(lines []string) []string {
	out := slices.Clone(lines)
	for i, line := range out {
		mark, rest, _ := strings.Cut(line, " ")
		if name, _, found := strings.Cut(rest, ":"); mark == "[-]" && found {
			out[i] = mark + " " + name
		} else if mark != "[+]" {
			out[i] = mark + " (left out: it may name rows)"
		}
	}
	return out
}

// What a process asks others for.
const (
	askProcess    = "process"
	askCollection = "collection"
)

// Answer answers a question of another process's admin service, fault.Unimplemented if it
// is not known.
func (a *Admin) Answer(ctx context.Context, what string, question []byte) ([]byte, error) {
	s := a.self.Load()
	switch {
	case what == HeatQuestion:
		if read := a.heat.Load(); read != nil {
			return answerHeat(ctx, *read, question)
		}
		return nil, fault.New(fault.Unavailable, "this process has no heat maps yet")
	case s == nil:
	case what == askProcess:
		p, err := s.describe()
		if err != nil {
			return nil, err
		}
		return json.Marshal(p)
	case what == askCollection:
		var c collecting
		if err := json.Unmarshal(question, &c); err != nil {
			return nil, fault.New(fault.Invalid, "decode the question: %w", err)
		}
		return json.Marshal(s.collect(ctx, c))
	}
	return nil, fault.New(fault.Unimplemented, "this process cannot be asked for %q", what)
}

// An Asker asks the processes of all tablet servers: client.Client.
type Asker interface {
	// Master returns the name of the master, and how long the lock service took to answer; 0
	// of what is no cluster.
	Master(ctx context.Context) (name string, took time.Duration, err error)
	AskAll(ctx context.Context, what string, question []byte, each func(server string, answer []byte, err error)) error
}

// askOthers asks all processes but this one.
func (a *Admin) askOthers(q *request, what string, question []byte, each func(server string, answer []byte, err error)) error {
	asker, ok := q.op.(Asker)
	if !ok {
		return nil
	}
	self := a.self.Load()
	return asker.AskAll(q.Context(), what, question, func(server string, answer []byte, err error) {
		if self == nil || self.Name != server {
			each(server, answer, err)
		}
	})
}

// ProcessList is the answer of GET /admin/processes.
type ProcessList struct {
	// Processes are the one that was asked, first, and those of all other tablet servers.
	Processes []Process `json:"processes"`
	// Master is the name of a cluster's master, empty if there is none at the moment; nil of
	// what is no cluster, or if it is not known.
	Master *string `json:"master,omitempty"`
	// LockSeconds is how long the lock service took to name the master.
	LockSeconds float64 `json:"lock_seconds"`
	// LockError is why it did not name it, or not the servers, which are not asked then.
	LockError string `json:"lock_error,omitempty"`
}

// askLimit is how long other processes have to answer.
const askLimit = 10 * time.Second

func (a *Admin) listProcesses(q *request) (any, error) {
	if err := q.onServers(); err != nil {
		return nil, err
	}
	out := ProcessList{Processes: []Process{}}
	if s := a.self.Load(); s != nil {
		p, err := s.describe()
		if err != nil {
			return nil, err
		}
		out.Processes = append(out.Processes, p)
	}
	ctx, cancel := context.WithTimeout(q.Context(), askLimit)
	defer cancel()
	q.Request = q.WithContext(ctx)
	if asker, ok := q.op.(Asker); ok {
		name, took, err := asker.Master(ctx)
		if err != nil {
			out.LockError = err.Error()
			return out, nil
		}
		if out.LockSeconds = took.Seconds(); took > 0 {
			out.Master = &name
		}
	}
	begin := time.Now()
	err := a.askOthers(q, askProcess, nil, func(server string, answer []byte, err error) {
		p := Process{Name: server}
		if err == nil {
			err = json.Unmarshal(answer, &p)
		}
		if err != nil {
			p = Process{Name: server, Error: err.Error()}
		} else {
			half := time.Since(begin) / 2
			p.OffSeconds, p.WaitSeconds = p.Now.Sub(begin.Add(half)).Seconds(), half.Seconds()
		}
		out.Processes = append(out.Processes, p)
	})
	if err != nil {
		out.LockError = err.Error()
	}
	return out, nil
}

// CollectionList is the answer of GET /admin/debug.
type CollectionList struct {
	Processes []Collection `json:"processes"`
}

// collectAll collects what may explain what the processes of the cluster do.
func (a *Admin) collectAll(q *request) (any, error) {
	if err := q.onServers(); err != nil {
		return nil, err
	}
	what := collecting{Keys: q.URL.Query().Get("keys") == "true"}
	if v := q.URL.Query().Get("seconds"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > int(maxProfile/time.Second) {
			return nil, fault.New(fault.Invalid, "seconds is %q, and has to be a number from 0 to %d", v, int(maxProfile/time.Second))
		}
		what.Seconds = n
	}
	question, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(q.Context(), askLimit+time.Duration(what.Seconds)*time.Second)
	defer cancel()
	q.Request = q.WithContext(ctx)
	own := make(chan Collection, 1)
	if s := a.self.Load(); s != nil {
		go func() { own <- s.collect(ctx, what) }()
	} else {
		close(own)
	}
	out := CollectionList{Processes: []Collection{}}
	err = a.askOthers(q, askCollection, question, func(server string, answer []byte, err error) {
		c := Collection{Name: server}
		if err == nil {
			err = json.Unmarshal(answer, &c)
		}
		if err != nil {
			c = Collection{Name: server, Error: err.Error()}
		}
		out.Processes = append(out.Processes, c)
	})
	if err != nil { // no reason to have nothing of this process
		out.Processes = append(out.Processes, Collection{Name: "others", Error: err.Error()})
	}
	if c, ok := <-own; ok {
		out.Processes = slices.Insert(out.Processes, 0, c)
	}
	return out, nil
}
