package main

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/engine/keyvis"
)

// A diagnosis is something that an operator should know, and do.
type diagnosis struct {
	// Severity is "problem", "warning" or "info".
	Severity string `json:"severity"`
	// Check is what was looked at.
	Check string `json:"check"`
	// Where is the process or the table that it is about.
	Where string `json:"where,omitempty"`
	Text  string `json:"text"`
	// Do says what to do.
	Do string `json:"do"`
}

const (
	problem = "problem"
	warning = "warning"
)

// doctorLimit is how long doctor takes at most.
const doctorLimit = time.Minute

// doctorCommand looks at a server, or all of a cluster, and says what to do.
func doctorCommand(p *process) *cobra.Command {
	return p.asks(adminVerb{use: "doctor", short: "look at the servers and say what is wrong, and what to do", limit: doctorLimit,
		long: "Looks at clocks, file limits, the time of a sync, memory, disks, certificates,\nthe lock service, the master, versions, hot and large rows, damage, and how the\nload is spread. It exits with 1 if it finds something.",
		run: func(c *adminClient, _ []string) error {
			var found []diagnosis
			var looked int
			err := p.telling("look at the servers", func(*progress) (err error) {
				found, looked, err = c.diagnose()
				return err
			})
			if err != nil {
				return err
			}
			if c.json {
				err = c.print(map[string]any{"findings": found, "processes": looked})
			} else {
				err = printDiagnoses(c, found, looked)
			}
			if n := len(found); err == nil && n > 0 {
				err = fmt.Errorf("there are findings: %d", n)
			}
			return err
		}})
}

func printDiagnoses(c *adminClient, found []diagnosis, processes int) error {
	out := c.p.screen()
	const indent = 22
	lines := func(text string) []string {
		if width := widthOf(out); width > 2*indent {
			return wrap(text, width-indent)
		}
		return []string{text}
	}
	for _, d := range found {
		head, text := fmt.Sprintf("%-8s %s", d.Severity, d.Check), d.Text
		if d.Where != "" {
			text = d.Where + ": " + text
		}
		for _, line := range lines(text) {
			fmt.Fprintf(out, "%-*s%s%s\n", indent, head, line, flaw(d.Severity == problem))
			head = ""
		}
		for _, line := range lines("→ " + d.Do) {
			if _, err := fmt.Fprintf(out, "%*s%s\n", indent, "", line); err != nil {
				return err
			}
		}
	}
	_, err := fmt.Fprintf(out, "looked at %s, found %d\n", several(processes, "process", "es"), len(found))
	return err
}

// diagnose looks at everything. It returns what it has found, problems first, and how many
// processes it has asked.
func (c *adminClient) diagnose() (found []diagnosis, processes int, err error) {
	found = []diagnosis{}
	var list ops.ProcessList
	begin := time.Now()
	if err := c.request(c.ctx, http.MethodGet, "/admin/processes", nil, &list); err != nil {
		return nil, 0, err
	}
	found = append(found, judgeProcesses(&list, begin, time.Now())...)
	var servers ops.ServerList
	var tablets ops.TabletList
	for path, into := range map[string]any{"servers": &servers, "tablets": &tablets} {
		if err := c.request(c.ctx, http.MethodGet, "/admin/"+path, nil, into); err != nil {
			if c.ctx.Err() != nil {
				return nil, 0, err
			}
			found = append(found, diagnosis{problem, path, "", "the list of " + path + " cannot be had: " + err.Error(), "see whether the lock service and the servers with METADATA run"})
		}
	}
	found = append(found, judgeServers(servers.Servers)...)
	for _, t := range tablets.Tablets {
		if t.Server == "" {
			found = append(found, diagnosis{problem, "tablets", t.Table, "tablet " + t.Tablet + " is served by nobody", "see that a master and enough tablet servers run, and read the master's log"})
		}
	}
	tables := tablesOf(tablets.Tablets)
	const most = 20 // tables whose heat maps are read
	for _, t := range tables[:min(most, len(tables))] {
		if !strings.HasPrefix(t.Table, "projects/") {
			continue
		}
		var m ops.HeatMap
		from := url.QueryEscape(time.Now().Add(-15 * time.Minute).UTC().Format(time.RFC3339))
		if err := c.request(c.ctx, http.MethodGet, "/admin/keyvis?table="+url.QueryEscape(t.Table)+"&from="+from, nil, &m); err != nil {
			if c.ctx.Err() != nil {
				return nil, 0, err
			}
			break // a process without heat maps
		}
		for _, f := range m.Findings {
			check, do := "hot rows", "look at the table's key visualizer; choose keys that spread the load"
			if f.Kind == string(keyvis.LargeRow) {
				check, do = "large rows", "look at the table's garbage collection, and at what writes to the row"
			}
			if f.Severity == warning {
				found = append(found, diagnosis{warning, check, t.Table, f.Text + " It is at " + ops.EscapeKey(f.Key) + ".", do})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b diagnosis) int { return cmp.Compare(a.Severity, b.Severity) })
	return found, len(list.Processes), nil
}

// Limits of what is sound.
const (
	soundOff      = 1.0 // seconds between clocks
	soundFiles    = 8192
	soundSync     = 0.05 // seconds, the mean
	badSync       = 0.5
	soundLock     = 0.2 // seconds
	soundFree     = 0.1 // of a disk
	soundDays     = 14  // of a certificate that is about to end
	badDays       = 2
	soundShare    = 3.0 // times the mean of the servers' load
	soundRowsRate = 1000
)

// judgeProcesses judges what processes tell of themselves. They were asked between begin
// and end.
func judgeProcesses(list *ops.ProcessList, begin, end time.Time) (out []diagnosis) {
	add := func(severity, check, where, do, text string, args ...any) {
		out = append(out, diagnosis{severity, check, where, fmt.Sprintf(text, args...), do})
	}
	versions := map[string][]string{}
	for i := range list.Processes {
		p := &list.Processes[i]
		if p.Error != "" {
			add(problem, "servers", p.Name, "see whether it runs, and read its log; a process of an earlier version does not answer this", "it does not answer: %s", p.Error)
			continue
		}
		v := p.Version + " " + p.Revision
		versions[v] = append(versions[v], p.Name)
		off, give := p.OffSeconds, p.WaitSeconds
		than := "that of the server which was asked"
		if i == 0 && give == 0 {
			half := end.Sub(begin) / 2
			off, give, than = p.Now.Sub(begin.Add(half)).Seconds(), half.Seconds(), "that of this machine"
		}
		if math.Abs(off) > soundOff+give {
			add(warning, "clock", p.Name, "run an NTP client on each machine; timestamps that servers give and expiry go by their clocks", "its clock is %.1f s off %s", off, than)
		}
		if p.MaxFiles > 0 && p.OpenFiles*10 > p.MaxFiles*8 {
			add(problem, "files", p.Name, "raise the limit of open files (LimitNOFILE, ulimit -n) and restart it", "%d of at most %d files are open", p.OpenFiles, p.MaxFiles)
		} else if p.MaxFiles > 0 && p.MaxFiles < soundFiles {
			add(warning, "files", p.Name, fmt.Sprintf("raise the limit of open files to %d or more (LimitNOFILE, ulimit -n)", soundFiles), "it may open %d files only", p.MaxFiles)
		}
		if p.Syncs >= 10 {
			mean := p.SyncSeconds / float64(p.Syncs)
			severity := warning
			if mean > badSync {
				severity = problem
			}
			if mean > soundSync {
				add(severity, "sync", p.Name, "put the data on a disk that syncs faster: every write waits for it", "a sync of the commit log takes %.0f ms", 1000*mean)
			}
		}
		if p.MemorySetting > 0 && float64(p.MemoryBytes) > 1.3*float64(p.MemorySetting)+float64(256<<20) {
			add(warning, "memory", p.Name, "set memory to what the process may take, or look for what holds it: trestle debug zip has a heap profile", "it takes %s, and memory says %s", byteSize(p.MemoryBytes), byteSize(p.MemorySetting))
		}
		if all := p.DiskFreeBytes + p.DiskUsedBytes; all > 0 && float64(p.DiskFreeBytes) < soundFree*float64(all) {
			add(problem, "disk", p.Name, "free space or add some: writes are refused when it is used up", "%s of %s are free", byteSize(p.DiskFreeBytes), byteSize(all))
		}
		for _, x := range p.Certificates {
			left := x.NotAfter.Sub(end)
			severity := warning
			if left < badDays*24*time.Hour {
				severity = problem
			}
			switch {
			case x.Error != "":
				add(warning, "certificate", p.Name, "see that the process can read it", "%s: %s", x.File, x.Error)
			case left < soundDays*24*time.Hour:
				add(severity, "certificate", p.Name, "renew it; a server reads it anew when the file changes", "%s ends at %s", x.File, x.NotAfter.UTC().Format(time.RFC3339))
			}
		}
		if p.Corruptions > 0 {
			add(problem, "damage", p.Name, "run trestle tablet verify --all on the tables, and see the handbook on damage", "reads have met damaged bytes %d times since it started", p.Corruptions)
		}
		for _, line := range p.Health {
			if why, bad := strings.CutPrefix(line, "[-] "); bad {
				add(problem, "health", p.Name, "it is not ready until that is mended", "%s", why)
			} else if what, bad := strings.CutPrefix(line, "[!] "); bad {
				add(warning, "health", p.Name, "see the handbook; the process serves all the same", "%s", what)
			}
		}
	}
	if len(versions) > 1 {
		var each []string
		for v, names := range versions {
			each = append(each, v+" ("+strings.Join(names, ", ")+")")
		}
		slices.Sort(each)
		add(warning, "versions", "", "bring all processes to one version", "the processes are of %d versions: %s", len(versions), strings.Join(each, "; "))
	}
	if list.LockError != "" {
		add(problem, "etcd", "", "see whether etcd runs, and whether this machine reaches it", "the lock service does not answer: %s", list.LockError)
	}
	if list.Master != nil && *list.Master == "" {
		add(problem, "master", "", "start a master, or read the log of one that waits: without one no tablet moves to a living server", "no process is the master")
	}
	if list.LockSeconds > soundLock {
		add(warning, "etcd", "", "see to etcd's disk and network: tablets wait for it when they move", "the lock service takes %.0f ms to answer", 1000*list.LockSeconds)
	}
	return out
}

// judgeServers judges how the load is spread.
func judgeServers(list []ops.TabletServer) (out []diagnosis) {
	var total float64
	n := 0
	for _, s := range list {
		if !s.Draining && s.Error == "" {
			total += s.RowsReadPerSecond + s.RowsWrittenPerSecond
			n++
		}
	}
	for _, s := range list {
		r := s.RowsReadPerSecond + s.RowsWrittenPerSecond
		if mean := total / float64(max(n, 1)); n > 1 && r > soundRowsRate && r > min(soundShare*mean, 0.9*total) {
			out = append(out, diagnosis{warning, "imbalance", s.Name, fmt.Sprintf("it serves %.0f of %.0f rows a second", r, total),
				"see with trestle top which tablet has it; one that is hot is split, unless its load is on one row"})
		}
	}
	return out
}
