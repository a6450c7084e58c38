//go:build kafka

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/trestledb/trestle/engine/loopback"
)

// kafkaJars is the environment variable that names a directory with the jars of Kafka.
// testdata/kafka/fetch.sh fills one.
const kafkaJars = "TRESTLE_TEST_KAFKA"

// A kafkaBroker is a real Kafka on loopback, of one process.
type kafkaBroker struct {
	t         *testing.T
	jars, dir string
	addr      string
	cmd       *exec.Cmd
}

// startKafka starts a broker whose topics have three partitions, and skips the test if the
// environment names no jars.
func startKafka(t *testing.T) *kafkaBroker {
	t.Helper()
	jars := os.Getenv(kafkaJars)
	if jars == "" {
		t.Skipf("%s does not name a directory with the jars of Kafka (make kafka-broker)", kafkaJars)
	}
	if _, err := exec.LookPath("java"); err != nil {
		t.Skip("there is no java to run Kafka with")
	}
	// The processes refuse what they take for a setting.
	t.Setenv(kafkaJars, "")
	if err := os.Unsetenv(kafkaJars); err != nil {
		t.Fatal(err)
	}
	b := &kafkaBroker{t: t, jars: jars, dir: t.TempDir()}
	host, err := loopback.Take()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = host.Close() })
	var controller string
	for _, a := range []*string{&b.addr, &controller} {
		if *a, err = host.Addr(); err != nil {
			t.Fatal(err)
		}
	}
	conf := "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@" + controller + "\nlisteners=PLAINTEXT://" + b.addr + ",CONTROLLER://" + controller +
		"\ncontroller.listener.names=CONTROLLER\nlistener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\ninter.broker.listener.name=PLAINTEXT\n" +
		"log.dirs=" + b.dir + "/logs\nnum.partitions=3\noffsets.topic.replication.factor=1\n"
	if err := os.WriteFile(filepath.Join(b.dir, "server.properties"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := b.java("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", filepath.Join(b.dir, "server.properties")).CombinedOutput(); err != nil {
		t.Fatalf("format: %v\n%s", err, out)
	}
	t.Cleanup(b.kill)
	b.start()
	return b
}

func (b *kafkaBroker) java(class string, args ...string) *exec.Cmd {
	return exec.Command("java", append([]string{"-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", b.jars + "/*", class}, args...)...)
}

// start starts it, and returns when it answers.
func (b *kafkaBroker) start() {
	b.t.Helper()
	b.cmd = b.java("kafka.Kafka", filepath.Join(b.dir, "server.properties"))
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := b.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	c := b.client()
	defer c.Close()
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*time.Minute)
	defer cancel()
	for c.Ping(ctx) != nil {
		if ctx.Err() != nil {
			b.t.Fatal("Kafka does not answer within two minutes")
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (b *kafkaBroker) kill() {
	if b.cmd != nil && b.cmd.ProcessState == nil {
		_ = b.cmd.Process.Kill()
		_ = b.cmd.Wait()
	}
}

func (b *kafkaBroker) client(more ...kgo.Opt) *kgo.Client {
	b.t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.addr), kgo.AllowAutoTopicCreation()}, more...)...)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

// topic returns what a topic has, each partition in order.
func (b *kafkaBroker) topic(name string) (out []*kgo.Record) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*time.Minute)
	defer cancel()
	p := b.client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer p.Close()
	const partitions = 3
	for i := range int32(partitions) {
		if err := p.ProduceSync(ctx, &kgo.Record{Topic: name, Partition: i, Value: []byte("end")}).FirstErr(); err != nil {
			b.t.Fatal(err)
		}
	}
	c := b.client(kgo.ConsumeTopics(name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer c.Close()
	for ends := 0; ends < partitions; {
		f := c.PollFetches(ctx)
		if ctx.Err() != nil {
			b.t.Fatalf("%d messages, and no end", len(out))
		}
		for _, r := range f.Records() {
			if string(r.Value) == "end" {
				ends++
			} else {
				out = append(out, r)
			}
		}
	}
	return out
}

// TestStreamToKafka: what `trestle stream` brings to a real Kafka is what was acknowledged, though
// it is killed, and the broker too. What comes twice has the same key, headers and value, and those
// of a row are in order.
func TestStreamToKafka(t *testing.T) {
	b := startKafka(t)
	o := operate(t)
	defer o.stop(syscall.SIGTERM)
	if err := o.admin.UpdateTableWithChangeStream(t.Context(), "users", 24*time.Hour); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	stop := make(chan struct{})
	var writers sync.WaitGroup
	defer writers.Wait()
	var once sync.Once
	end := func() { once.Do(func() { close(stop) }) }
	defer end()
	const many = 4
	var failed [many]error
	var written [many]map[string][]string
	for w := range written {
		written[w] = map[string][]string{}
		writers.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(w)))
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				row, value := fmt.Sprintf("w%d-%d", w, r.IntN(20)), fmt.Sprint(n)
				m := bigtable.NewMutation()
				m.Set("f", "q", 1000, []byte(value))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				failed[w] = o.table.Apply(ctx, row, m)
				if cancel(); failed[w] != nil {
					return
				}
				written[w][row] = append(written[w][row], value)
			}
		})
	}
	position := filepath.Join(t.TempDir(), "position")
	stream := func(more ...string) *proc {
		return startTrestle(t, "real", t.TempDir(), append([]string{"stream", "project/instance/users", "--plaintext", "--server", o.addr, "--position", position,
			"--start", begin.Format(time.RFC3339Nano), "--to", "kafka://" + b.addr + "/changes"}, more...)...)
	}
	c := b.client(kgo.DefaultProduceTopic("changes")) // makes the topic
	if err := c.ProduceSync(t.Context(), kgo.StringRecord("begin")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	c.Close()
	at := func() string {
		b, _ := os.ReadFile(position)
		return string(b)
	}
	// moves waits until the position is another one, while the process runs.
	moves := func(p *proc, was string, ended <-chan struct{}) {
		t.Helper()
		for limit := time.After(2 * time.Minute); at() == was; {
			select {
			case <-ended:
				t.Fatalf("%v; %s", p.cmd.ProcessState, p.stderr)
			case <-limit:
				t.Fatalf("the position does not move; %s", p.stderr)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	for round := range 6 {
		was := at()
		p := stream()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = io.Copy(io.Discard, p.stdout)
			_ = p.cmd.Wait()
		}()
		moves(p, was, ended)
		if round%3 == 2 {
			b.kill()
			was := at()
			b.start()
			moves(p, was, ended)
		}
		p.signal(syscall.SIGKILL)
		<-ended
	}
	end()
	writers.Wait()
	if err := errors.Join(failed[:]...); err != nil {
		t.Fatal(err)
	}
	p := stream("--end", time.Now().Add(100*time.Millisecond).Format(time.RFC3339Nano))
	if _, code, _ := p.exit(); code != exitOK {
		t.Fatalf("exit code %d: %s", code, p.stderr)
	}
	type message struct {
		value     string
		partition int32
	}
	seen, got, in, repeated := map[string]message{}, map[string][]string{}, map[string]int32{}, 0
	for _, r := range b.topic("changes") {
		if string(r.Value) == "begin" {
			continue
		}
		row, id := string(r.Key), string(r.Key)
		for _, h := range r.Headers {
			id += " " + h.Key + " " + string(h.Value)
		}
		if first, again := seen[id]; again {
			if repeated++; first.value != string(r.Value) || first.partition != r.Partition {
				t.Errorf("%s comes again as %s", id, r.Value)
			}
			continue
		}
		seen[id] = message{string(r.Value), r.Partition}
		if p, ok := in[row]; ok && p != r.Partition {
			t.Errorf("row %s is in partitions %d and %d", row, p, r.Partition)
		}
		in[row] = r.Partition
		_, value, _ := strings.Cut(string(r.Value), `"value":"`)
		value, _, _ = strings.Cut(value, `"`)
		got[row] = append(got[row], value)
	}
	all := map[string][]string{}
	n := 0
	for _, w := range written {
		maps.Copy(all, w)
	}
	for row, values := range all {
		// The client may have written one twice, to have it acknowledged.
		if n += len(values); !slices.Equal(slices.Compact(got[row]), values) {
			t.Errorf("row %s: %d values came, %d were acknowledged", row, len(got[row]), len(values))
		}
	}
	t.Logf("%d writes acknowledged, %d messages came again, 6 kills of the reader and 2 of the broker", n, repeated)
	if len(got) != len(all) || n == 0 {
		t.Errorf("%d rows came, %d were written", len(got), len(all))
	}
}
