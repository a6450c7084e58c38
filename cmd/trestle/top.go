package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
	"github.com/trestledb/trestle/engine/request"
)

// A tableLoad is what is asked for per second, of a table.
type tableLoad struct {
	Table       string  `json:"table"`
	Tablets     int     `json:"tablets"`
	Bytes       int64   `json:"bytes"`
	RowsRead    float64 `json:"rows_read_per_second"`
	RowsWritten float64 `json:"rows_written_per_second"`
	BytesMoved  float64 `json:"bytes_per_second"`
}

// A methodLoad is what a process was asked for in the last minute.
type methodLoad struct {
	Method   string  `json:"method"`
	Requests float64 `json:"requests_per_second"`
	// Median and P99 are latencies in seconds.
	Median float64 `json:"median_seconds"`
	P99    float64 `json:"p99_seconds"`
}

// A principalLoad is what a principal asked the process for that was asked: how much lately,
// and what its slow requests took in slowSpan.
type principalLoad struct {
	Principal string  `json:"principal"`
	Requests  float64 `json:"requests_per_second"`
	Slow      int     `json:"slow_requests"`
	Seconds   float64 `json:"slow_seconds"`
}

// slowSpan is how long ago a request of principalLoad began at most.
const slowSpan = 10 * time.Minute

// A topList is what top prints, the busiest first.
type topList struct {
	Tables  []tableLoad  `json:"tables"`
	Tablets []ops.Tablet `json:"tablets"`
	Methods []methodLoad `json:"methods"`
	// Principals are those that ask for most, or have slow requests.
	Principals []principalLoad `json:"principals"`
}

// topCommand shows what has most load.
func topCommand(p *process) *cobra.Command {
	own := pflag.NewFlagSet("top", pflag.ContinueOnError)
	own.SortFlags = false
	n := own.Int("lines", 10, "how many tables, tablets and methods to print")
	every := own.Duration("every", 0, "print again after so long, until it is interrupted; 0: print once")
	return p.asks(adminVerb{use: "top", short: "print the tables, tablets, methods and principals with most load",
		long:  "Prints the tables and tablets of all servers with most load of the last seconds.\nOf the server which is asked it prints the methods and principals of the last\nminute, and whose requests were slow in the last ten.",
		flags: own, check: func([]string) error {
			if *n < 1 || *every < 0 {
				return errors.New("--lines has to be 1 or more, and --every not negative")
			}
			return nil
		}, run: func(c *adminClient, _ []string) error {
			for {
				t, err := c.top(*n)
				if err != nil {
					return err
				}
				if c.json {
					err = c.print(t)
				} else {
					err = printTop(c.p.stdout, t)
				}
				if err != nil || *every == 0 {
					return err
				}
				select {
				case <-c.ctx.Done():
					return nil
				case <-time.After(*every):
				}
			}
		}})
}

func (c *adminClient) top(n int) (*topList, error) {
	var tablets ops.TabletList
	if err := c.call(c.ctx, http.MethodGet, "/admin/tablets", nil, &tablets); err != nil {
		return nil, err
	}
	t := &topList{Tables: tablesOf(tablets.Tablets), Tablets: tablets.Tablets, Methods: []methodLoad{}, Principals: []principalLoad{}}
	slices.SortStableFunc(t.Tablets, func(a, b ops.Tablet) int {
		return cmp.Compare(b.RowsReadPerSecond+b.RowsWrittenPerSecond, a.RowsReadPerSecond+a.RowsWrittenPerSecond)
	})
	t.Tables, t.Tablets = t.Tables[:min(n, len(t.Tables))], t.Tablets[:min(n, len(t.Tablets))]
	var h ops.HistoryList
	from := url.QueryEscape(time.Now().Add(-3 * time.Minute).UTC().Format(time.RFC3339))
	if err := c.call(c.ctx, http.MethodGet, "/admin/history?names=requests,latency&from="+from, nil, &h); err == nil {
		t.Methods = methodsOf(h, n)
	} else if c.ctx.Err() != nil {
		return nil, err
	} // who may see tables may not see servers, and a command over etcd has no process
	var slow struct {
		Requests []request.Slow `json:"requests"`
	}
	var principals struct {
		Principals []ops.PrincipalLoad `json:"principals"`
	}
	for path, into := range map[string]any{"slow": &slow, "principals": &principals} {
		if err := c.call(c.ctx, http.MethodGet, "/admin/"+path, nil, into); err != nil && c.ctx.Err() != nil {
			return nil, err
		}
	}
	t.Principals = principalsOf(principals.Principals, slow.Requests, time.Now().Add(-slowSpan), n)
	return t, nil
}

// principalsOf joins what principals ask for with their slow requests since a time, most
// first.
func principalsOf(loads []ops.PrincipalLoad, list []request.Slow, since time.Time, n int) []principalLoad {
	out := []principalLoad{}
	for _, l := range loads {
		out = append(out, principalLoad{Principal: l.Principal, Requests: l.PerSecond})
	}
	for i := range list {
		x := &list[i]
		if x.Principal == "" || x.Time.Before(since) {
			continue
		}
		k := slices.IndexFunc(out, func(p principalLoad) bool { return p.Principal == x.Principal })
		if k < 0 {
			k = len(out)
			out = append(out, principalLoad{Principal: x.Principal})
		}
		out[k].Slow++
		out[k].Seconds += x.Seconds
	}
	out = slices.DeleteFunc(out, func(p principalLoad) bool { return p.Requests == 0 && p.Slow == 0 })
	slices.SortStableFunc(out, func(a, b principalLoad) int {
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), cmp.Compare(b.Seconds, a.Seconds))
	})
	return out[:min(n, len(out))]
}

// tablesOf adds up tablets by table, the busiest table first.
func tablesOf(list []ops.Tablet) []tableLoad {
	out := []tableLoad{}
	at := map[string]int{}
	for i := range list {
		x := &list[i]
		k, ok := at[x.Table]
		if !ok {
			k = len(out)
			at[x.Table] = k
			out = append(out, tableLoad{Table: x.Table})
		}
		s := &out[k]
		s.Tablets++
		s.Bytes += x.Bytes
		s.RowsRead += x.RowsReadPerSecond
		s.RowsWritten += x.RowsWrittenPerSecond
		s.BytesMoved += x.BytesPerSecond
	}
	slices.SortStableFunc(out, func(a, b tableLoad) int { return cmp.Compare(b.RowsRead+b.RowsWritten, a.RowsRead+a.RowsWritten) })
	return out
}

// methodsOf returns the newest points of the series requests and latency.
func methodsOf(h ops.HistoryList, n int) []methodLoad {
	out := []methodLoad{}
	of := func(method string) *methodLoad {
		i := slices.IndexFunc(out, func(m methodLoad) bool { return m.Method == method })
		if i < 0 {
			out = append(out, methodLoad{Method: method})
			i = len(out) - 1
		}
		return &out[i]
	}
	for _, s := range h.Series {
		if len(s.Points) == 0 {
			continue
		}
		last := s.Points[len(s.Points)-1][1]
		switch m := of(s.Labels["method"]); {
		case s.Name == "requests":
			m.Requests = last
		case s.Labels["quantile"] == "0.5":
			m.Median = last
		default:
			m.P99 = last
		}
	}
	out = slices.DeleteFunc(out, func(m methodLoad) bool { return m.Requests == 0 })
	slices.SortStableFunc(out, func(a, b methodLoad) int { return cmp.Compare(b.Requests, a.Requests) })
	return out[:min(n, len(out))]
}

func printTop(out io.Writer, t *topList) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TABLETS\tSIZE\tREAD/S\tWRITE/S\tBYTES/S\tTABLE") // the name, which can be long, last
	for _, x := range t.Tables {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", x.Tablets, byteSize(x.Bytes), rate(x.RowsRead), rate(x.RowsWritten), byteSize(int64(x.BytesMoved)), x.Table)
	}
	fmt.Fprintln(w, "\nTABLET\tFROM\tTO\tREAD/S\tWRITE/S\tSERVER\tTABLE")
	name := 14 // characters of a table's for which 80 columns have room
	for _, x := range t.Tablets {
		name = max(name, len(lastPart(x.Table)))
	}
	key := keysFor(out, false, name-14)
	for _, x := range t.Tablets {
		fmt.Fprintf(w, "%s\t[%s\t%s)\t%s\t%s\t%s\t%s\n", x.Tablet, key(x.Start), key(x.End), rate(x.RowsReadPerSecond), rate(x.RowsWrittenPerSecond), cmp.Or(x.Server, "-"), lastPart(x.Table))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "METHOD\tREQUESTS/S\tMEDIAN\tP99")
	for _, m := range t.Methods {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", m.Method, rate(m.Requests), latency(m.Median), latency(m.P99))
	}
	if err := w.Flush(); err != nil || len(t.Principals) == 0 {
		return err
	}
	fmt.Fprintln(out)
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PRINCIPAL\tREQUESTS/S\tSLOW REQUESTS\tTOOK")
	for _, x := range t.Principals {
		// A client of HBase's API without login says itself what it is called.
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", ops.EscapeKey([]byte(x.Principal)), rate(x.Requests), x.Slow, latency(x.Seconds))
	}
	return w.Flush()
}

func latency(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second)).Round(10 * time.Microsecond)
}
