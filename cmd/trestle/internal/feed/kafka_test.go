//go:build kafka

package feed

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// brokersEnv names brokers of a real Kafka, which creates topics by itself. Without it the
// tests have one that is made up.
const brokersEnv = "TRESTLE_KAFKA"

// topic returns brokers, and a topic with three partitions.
func topic(t *testing.T) (brokers, name string) {
	t.Helper()
	name = fmt.Sprintf("changes-%d", time.Now().UnixNano())
	if b := os.Getenv(brokersEnv); b != "" {
		return b, name
	}
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return strings.Join(c.ListenAddrs(), ","), name
}

// consumed returns the messages of a topic.
func consumed(t *testing.T, brokers, name string, enough func([]*kgo.Record) bool) (out []*kgo.Record) {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(brokers, ",")...), kgo.ConsumeTopics(name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for !enough(out) {
		f := c.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%d messages came", len(out))
		}
		out = append(out, f.Records()...)
	}
	return out
}

// TestKafka: every record is in the topic, those of a row in order and in one partition. What
// a run that lost its position produces again has the key and headers that it had.
func TestKafka(t *testing.T) {
	m, client := serve(t)
	brokers, name := topic(t)
	create(t, brokers, name)
	begin := time.Now()
	path := filepath.Join(t.TempDir(), "position")
	run := func(end time.Time) {
		t.Helper()
		at, err := Load(path, table)
		if err != nil {
			t.Fatal(err)
		}
		s, err := OpenKafka(t.Context(), "kafka://"+brokers+"/"+name, path, func(err error) { t.Log(err) })
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		f := &Feed{Client: client, Table: table, Start: begin, End: end, Sink: s, Warn: func(err error) { t.Log(err) }}
		if err := f.Run(ctx, at); err != nil || ctx.Err() != nil {
			t.Fatal(err, ctx.Err())
		}
	}
	const rows, rounds = 8, 4
	for round := range rounds {
		for i := range rows {
			write(t, m, fmt.Sprint("row", i), fmt.Append(nil, round))
		}
		if round == 1 {
			if err := m.Split(t.Context(), table, []byte("row4")); err != nil {
				t.Fatal(err)
			}
		}
		before, _ := os.ReadFile(path)
		run(time.Now())
		if round == 2 { // as if it had ended before the position was kept
			if err := os.WriteFile(path, before, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The third round is there twice.
	got := consumed(t, brokers, name, func(r []*kgo.Record) bool { return len(r) >= rows*(rounds+1) })
	if len(got) != rows*(rounds+1) {
		t.Errorf("%d messages", len(got))
	}
	values, partitions, seen := map[string][]string{}, map[string]int32{}, map[string]bool{}
	repeated := 0
	for _, r := range got {
		key := string(r.Key)
		if p, ok := partitions[key]; ok && p != r.Partition {
			t.Errorf("row %s is in partitions %d and %d", key, p, r.Partition)
		}
		partitions[key] = r.Partition
		id := key
		for _, h := range r.Headers {
			id += "|" + h.Key + "=" + string(h.Value)
		}
		if !strings.Contains(id, "|commit=") || !strings.Contains(id, "|tiebreaker=") {
			t.Errorf("message %s", id)
		}
		if seen[id] {
			repeated++
			continue
		}
		seen[id] = true
		l := lines(t, r.Value)
		if len(l) != 1 || string(l[0].Row) != key {
			t.Fatalf("%s has the key %s", r.Value, key)
		}
		values[key] = append(values[key], string(*l[0].Mutations[0].Value))
	}
	for key, v := range values {
		if !slices.Equal(v, []string{"0", "1", "2", "3"}) {
			t.Errorf("row %s: %v", key, v)
		}
	}
	if len(values) != rows || repeated != rows {
		t.Errorf("%d rows, %d repeated", len(values), repeated)
	}
}

// create makes the topic if there is none.
func create(t *testing.T, brokers, name string) {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(brokers, ",")...))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	req := kmsg.NewPtrCreateTopicsRequest()
	one := kmsg.NewCreateTopicsRequestTopic()
	one.Topic, one.NumPartitions, one.ReplicationFactor = name, 3, 1
	req.Topics = append(req.Topics, one)
	if _, err := req.RequestWith(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// TestKafkaTooLarge: a line that the topic does not take ends the feed, and the position stays
// before it.
func TestKafkaTooLarge(t *testing.T) {
	brokers, name := topic(t)
	create(t, brokers, name)
	path := filepath.Join(t.TempDir(), "position")
	line := []byte(`{"row": "r", "commit": "2026-01-02T03:04:05Z", "tiebreaker": 0, "mutations": [{"value": "` + strings.Repeat("x", 4<<20) + `"}]}` + "\n")
	s, err := OpenKafka(t.Context(), "kafka://"+brokers+"/"+name, path, func(err error) { t.Log(err) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if err := s.Write(t.Context(), line, &Position{Table: table}); err == nil || !strings.Contains(err.Error(), "MESSAGE_TOO_LARGE") {
		t.Errorf("a line of 4 MiB: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the position was kept: %v", err)
	}
}

// TestKafkaMessage: the key is the row itself, also if it is not UTF-8.
func TestKafkaMessage(t *testing.T) {
	r, err := message([]byte(`{"row": {"base64": "/w=="}, "commit": "2026-01-02T03:04:05.6Z", "tiebreaker": 7}`))
	if err != nil || !bytes.Equal(r.Key, []byte{0xff}) || string(r.Headers[0].Value) != "2026-01-02T03:04:05.6Z" || string(r.Headers[1].Value) != "7" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := message([]byte("half a li")); err == nil {
		t.Error("what is no line is produced")
	}
}

// authority returns the TLS of brokers at 127.0.0.1, and files: the certificate of its
// authority, and a certificate with its key for clients.
func authority(t *testing.T) (conf *tls.Config, ca, key string) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	s.Close()
	conf = &tls.Config{Certificates: s.TLS.Certificates}
	b, err := x509.MarshalPKCS8PrivateKey(conf.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name, kind string, b []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return conf, file("ca.pem", "CERTIFICATE", s.Certificate().Raw), file("key.pem", "PRIVATE KEY", b)
}

// TestKafkaLogins: brokers that encrypt and want a login get lines by each mechanism, also lines of
// changes that are long ago; a client that does not know them, or that they do not know, is refused.
func TestKafkaLogins(t *testing.T) {
	conf, ca, key := authority(t)
	dir := t.TempDir()
	for name, password := range map[string]string{"right": "secret", "wrong": "secrets"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	right, wrong := "&user=me&password-file="+filepath.Join(dir, "right"), "&user=me&password-file="+filepath.Join(dir, "wrong")
	line := []byte(`{"row": "r", "commit": "2026-01-02T03:04:05Z", "tiebreaker": 0, "mutations": []}` + "\n")
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		brokers := conf.Clone()
		if mechanism == "PLAIN" {
			brokers.ClientAuth = tls.RequireAnyClientCert
		}
		c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t"), kfake.TLS(brokers), kfake.EnableSASL(), kfake.Superuser(mechanism, "me", "secret"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		url := "kafka://" + c.ListenAddrs()[0] + "/t?ca-file=" + ca
		if mechanism == "PLAIN" {
			url += "&cert-file=" + ca + "&key-file=" + key
		}
		if mechanism != "SCRAM-SHA-512" { // the default
			url += "&sasl=" + mechanism
		}
		position := filepath.Join(t.TempDir(), "position")
		s, err := OpenKafka(t.Context(), url+right, position, func(err error) { t.Log(err) })
		if err != nil {
			t.Errorf("%s: %v", mechanism, err)
			continue
		}
		if err := s.Write(t.Context(), line, &Position{Table: table}); err != nil {
			t.Errorf("%s: %v", mechanism, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		for what, u := range map[string]string{
			"a wrong password": url + wrong, "another authority": strings.Replace(url, "ca-file="+ca, "tls=true", 1) + right,
		} {
			if s, err := OpenKafka(t.Context(), u, position, func(err error) { t.Log(err) }); err == nil {
				_ = s.Close()
				t.Errorf("%s: %s is taken", mechanism, what)
			} else if what == "another authority" && !strings.Contains(err.Error(), "unknown authority") {
				t.Errorf("%s: %s: %v", mechanism, what, err)
			}
		}
	}
}

func TestKafkaURLs(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("p\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, ca, key := authority(t)
	login := "&user=u&password-file=" + secret
	for _, u := range []string{"kafka://b/t", "kafka://b:9092,c/t?tls=true", "kafka://b/t?user=u&password-file=" + secret, "kafka://b/t?max-message-bytes=2000000",
		"kafka://b/t?sasl=SCRAM-SHA-256" + login, "kafka://b/t?tls=true&sasl=PLAIN" + login, "kafka://b/t?tls=false", "kafka://b/t?cert-file=" + ca + "&key-file=" + key} {
		opts, topic, err := kafkaOptions(u)
		if err == nil {
			_, err = kgo.NewClient(opts...)
		}
		if err != nil || topic != "t" {
			t.Errorf("%s: topic %q, %v", u, topic, err)
		}
	}
	for _, u := range []string{"kafka://", "kafka://b", "kafka:///t", "kafka://b/t/u", "kafka://b/t?tls=perhaps", "kafka://b/t?acks=0", "kafka://b/t?user=u", "kafka://b/t?max-message-bytes=1", "kafka://b/t?%zz",
		"kafka://b/t?sasl=PLAIN" + login, "kafka://b/t?sasl=GSSAPI" + login, "kafka://b/t?sasl=PLAIN&tls=true", "kafka://b/t?password-file=" + secret, "kafka://b/t?tls=true&tls=false",
		"kafka://b/t?ca-file=" + secret, "kafka://b/t?ca-file=" + dir, "kafka://b/t?tls=false&ca-file=" + ca, "kafka://b/t?cert-file=" + ca, "kafka://b/t?cert-file=" + key + "&key-file=" + ca} {
		if _, _, err := kafkaOptions(u); err == nil {
			t.Errorf("%s is taken", u)
		}
	}
}
