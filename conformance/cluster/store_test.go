package cluster

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/objectstore/s3"
)

var (
	minio     = flag.String("cluster.minio", os.Getenv("TRESTLE_TEST_MINIO"), "path of a MinIO program")
	rclone    = flag.String("cluster.rclone", "", "path of an rclone program before 1.76, which ignores the condition of a PUT")
	intervals = flag.String("cluster.intervals", "0s", "commit intervals of TestWrites, separated by commas")
	rate      = flag.Float64("cluster.rate", 1000, "writes a second of the second load of TestWrites")
	load      = flag.Duration("cluster.load", 5*time.Second, "length of a load of TestWrites")
)

// TestCarelessStore: no tablet server starts on a store that forgets what
// put-if-absent means, and says why.
func TestCarelessStore(t *testing.T) {
	c, err := newCluster(Options{Trestle: program(t), Dir: t.TempDir(), Store: Careless})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := c.startEtcd(); err != nil {
		t.Fatal(err)
	}
	if *rclone == "" {
		if err := c.startStore(); err != nil {
			t.Fatal(err)
		}
	} else {
		addr, err := c.at(c.o.Host.IP, "store", "s3", 9000)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(c.o.Dir+"/rclone/"+bucket, 0o755); err != nil {
			t.Fatal(err)
		}
		c.Store = newProcess("store", c.o.Host.IP, "", c.o.Dir, "", *rclone, nil, "serve", "s3", "--addr", addr, "--auth-key", key+","+secret, c.o.Dir+"/rclone")
		if err := c.Store.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		c.storeURL = "s3://" + bucket + "/data?endpoint=" + addr + "&insecure=true"
	}
	p, err := c.trestle("server-1", announced, "tabletserver", "--store="+c.storeURL)
	if err != nil {
		t.Fatal(err)
	}
	c.Servers = append(c.Servers, p)
	for limit := time.Now().Add(2 * time.Minute); time.Now().Before(limit); time.Sleep(20 * time.Millisecond) {
		if e := p.Exits(); len(e) > 0 {
			if e[0].Code == 0 || !strings.Contains(e[0].Last, "the object store is unfit") {
				t.Errorf("exit code %d: %s", e[0].Code, e[0].Last)
			}
			t.Logf("%s", e[0].Last)
			return
		}
		if p.Ready(0) == nil {
			t.Fatal("the server serves from a store without put-if-absent")
		}
	}
	t.Errorf("the server neither serves nor ends\n%s", p.Log(4<<10))
}

// TestWrites measures durable writes over MinIO, what they ask of it, and one
// PUT beside them.
func TestWrites(t *testing.T) {
	if *minio == "" {
		t.Skip("-cluster.minio or TRESTLE_TEST_MINIO says where a MinIO program is")
	}
	for interval := range strings.SplitSeq(*intervals, ",") {
		c := start(t, Options{Store: *minio, Args: []string{"--commit-interval=" + interval, "--log-level=warn"}})
		_, addr, _ := strings.Cut(c.storeURL, "endpoint=")
		addr, _, _ = strings.Cut(addr, "&")
		st, err := s3.Open(t.Context(), s3.Options{Endpoint: addr, Insecure: true, Bucket: bucket, Prefix: "figures", AccessKey: key, SecretKey: secret, SpoolDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		puts := func(ctx context.Context, when string) (d []time.Duration) {
			for i := 0; ctx.Err() == nil; i++ {
				at := time.Now()
				if err := st.PutIfAbsent(t.Context(), fmt.Sprintf("%s/%d", when, i), make([]byte, 1000)); err != nil {
					t.Error(err)
					return d
				}
				d = append(d, time.Since(at))
			}
			return d
		}
		alone, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		one := puts(alone, "alone")
		cancel()

		t.Logf("commit interval %s; one PUT of 1 KB alone took %v", interval, spread(one))
		for _, rate := range []float64{0, *rate} {
			writes(t, c, st, rate)
		}
		c.Close()
	}
}

// figures are what a test needs of a result of `trestle bench --json`.
type figures struct {
	Operations uint64  `json:"operations"`
	OpsPerSec  float64 `json:"ops_per_second"`
	P50Micros  float64 `json:"p50_us"`
	P99Micros  float64 `json:"p99_us"`

	Errors map[string]uint64 `json:"errors"` // by gRPC code
}

// randomWrite runs `trestle bench` with 64 writers. It fails if none succeeds, or
// an answer is wrong.
func randomWrite(ctx context.Context, c *Cluster, rate float64) (figures, error) {
	cmd := exec.CommandContext(ctx, c.o.Trestle, "bench", "--endpoint="+c.API(c.Servers[0]), "--workload=random-write", "--concurrency=64",
		"--rows=20000", "--value-bytes=1000", "--splits=9", "--duration="+load.String(), "--warmup=1s", fmt.Sprintf("--rate=%g", rate),
		"--skip-final-check", "--quiet", "--json")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return figures{}, fmt.Errorf("trestle bench: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	var report struct {
		Results []figures `json:"results"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return figures{}, fmt.Errorf("what trestle bench prints: %w", err)
	}
	if len(report.Results) != 1 {
		return figures{}, fmt.Errorf("trestle bench prints %d results: %s", len(report.Results), out)
	}
	return report.Results[0], nil
}

// writes has 64 writers write rows of 1 KB, as fast as they can or, all together,
// at a rate.
func writes(t *testing.T, c *Cluster, st *s3.Store, rate float64) {
	before, err := c.Requests()
	if err != nil {
		t.Fatal(err)
	}
	processor := map[string]time.Duration{}
	for _, p := range c.Processes() {
		processor[p.Name] = p.Processor()
	}
	ctx, cancel := context.WithCancel(t.Context())
	during := make(chan []time.Duration)
	go func() {
		var d []time.Duration
		for i := 0; ctx.Err() == nil; i++ { // a PUT now and then
			at := time.Now()
			if err := st.PutIfAbsent(t.Context(), fmt.Sprintf("beside-%.0f/%d", rate, i), make([]byte, 1000)); err != nil {
				t.Error(err)
			}
			d = append(d, time.Since(at))
			wait(ctx, 50*time.Millisecond)
		}
		during <- d
	}()
	began := time.Now()
	r, err := randomWrite(t.Context(), c, rate)
	took := time.Since(began)
	cancel()
	beside := <-during
	if err != nil {
		t.Fatal(err)
	}
	after, err := c.Requests()
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Errors) > 0 {
		t.Errorf("%+v", r)
	}
	put := percentile(beside, 0.5).Seconds() * 1000
	t.Logf("64 writers, %.0f durable writes/s (%.0f asked for): p50 %.1f ms, p99 %.1f ms; a PUT beside them %v: p99 is %.1f times its median",
		r.OpsPerSec, rate, r.P50Micros/1000, r.P99Micros/1000, spread(beside), r.P99Micros/1000/put)
	asked, all, kinds := 0.0, 0.0, ""
	for api, n := range after {
		if n = (n - before[api]) / took.Seconds(); n > 0.05 {
			kinds += fmt.Sprintf(" %s %.1f", api, n)
			all += n
		}
		if api == "PutObject" {
			asked = n
		}
	}
	// List prices of S3 Standard: 5 USD for a million PUTs, 0.4 for other requests.
	hour := (asked*5 + (all-asked)*0.4) / 1e6 * 3600
	t.Logf("  requests to the store a second:%s; at list prices %.2f USD an hour, %.2f for a million writes", kinds, hour, hour/3600/r.OpsPerSec*1e6)
	times := ""
	for _, p := range c.Processes() {
		times += fmt.Sprintf(" %s %.1f", p.Name, float64((p.Processor()-processor[p.Name]).Microseconds())/float64(r.Operations))
	}
	t.Logf("  processor time for a write, µs:%s", times)
}
