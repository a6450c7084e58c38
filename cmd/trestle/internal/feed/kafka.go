//go:build kafka

package feed

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Headers of a message of Kafka: what tells a record that comes again, with its key.
const (
	commitHeader     = "commit"
	tiebreakerHeader = "tiebreaker"
)

// A Kafka is a Sink that produces a message for each line: the row is its key, so those of
// one row are in one partition, in order. All replicas in sync have it when Write returns.
// After a crash the last lines come again: a record is known by its key and the headers
// commit and tiebreaker.
type Kafka struct {
	path   string
	client *kgo.Client
	warn   func(error)
}

// OpenKafka opens the topic that a URL names:
//
//	kafka://BROKER[:PORT][,BROKER...]/TOPIC[?tls=true][&user=NAME&password-file=FILE][&max-message-bytes=N]
//
// With a user it logs in by SCRAM-SHA-512. N is the topic's max.message.bytes, by default
// that of Kafka: a longer line ends the feed. The position is kept at position.
func OpenKafka(ctx context.Context, address, position string, warn func(error)) (Sink, error) {
	opts, _, err := kafkaOptions(address)
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := client.Ping(ctx); err != nil {
		client.Close()
		return nil, fmt.Errorf("reach the brokers of %s: %w", address, err)
	}
	return &Kafka{path: position, client: client, warn: warn}, nil
}

// kafkaOptions reads the URL of a topic.
func kafkaOptions(address string) (opts []kgo.Opt, topic string, err error) {
	// net/url takes no list of hosts.
	rest, ok := strings.CutPrefix(address, "kafka://")
	hosts, rest, _ := strings.Cut(rest, "/")
	topic, query, _ := strings.Cut(rest, "?")
	if !ok || hosts == "" || topic == "" || strings.Contains(topic, "/") {
		return nil, "", fmt.Errorf("%s is not of the form kafka://BROKER[:PORT][,BROKER...]/TOPIC", address)
	}
	q, err := url.ParseQuery(query)
	if err != nil {
		return nil, "", fmt.Errorf("read %s: %w", address, err)
	}
	for name := range q {
		switch name {
		case "tls", "user", "password-file", "max-message-bytes":
		default:
			return nil, "", fmt.Errorf("%s has %q; tls, user, password-file and max-message-bytes are known", address, name)
		}
	}
	// Idempotent and acknowledged by all replicas in sync, as is its default: an attempt
	// that is repeated after a lost answer adds nothing.
	opts = []kgo.Opt{kgo.SeedBrokers(strings.Split(hosts, ",")...), kgo.DefaultProduceTopic(topic), kgo.ClientID("trestle"),
		kgo.ProducerBatchCompression(kgo.Lz4Compression(), kgo.NoCompression()), kgo.RecordDeliveryTimeout(time.Minute)}
	if most := q.Get("max-message-bytes"); most != "" {
		n, err := strconv.ParseInt(most, 10, 32)
		if err != nil || n < 1024 || n > 1<<30 {
			return nil, "", fmt.Errorf("%s has max-message-bytes=%s, and not a number from 1024 to 1073741824", address, most)
		}
		opts = append(opts, kgo.ProducerBatchMaxBytes(int32(n)))
	}
	switch q.Get("tls") {
	case "", "false":
	case "true":
		opts = append(opts, kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12}))
	default:
		return nil, "", fmt.Errorf("%s has tls=%s, and not true or false", address, q.Get("tls"))
	}
	if user := q.Get("user"); user != "" {
		b, err := os.ReadFile(q.Get("password-file"))
		if err != nil {
			return nil, "", fmt.Errorf("read the password of %s: %w", user, err)
		}
		opts = append(opts, kgo.SASL(scram.Auth{User: user, Pass: strings.TrimSpace(string(b))}.AsSha512Mechanism()))
	}
	return opts, topic, nil
}

// Write implements Sink. Messages of one row stay in order: a failure ends the write, and all
// its lines are produced again.
func (k *Kafka) Write(ctx context.Context, lines []byte, at *Position) error {
	var records []*kgo.Record
	for l := range bytes.Lines(lines) {
		r, err := message(bytes.TrimSuffix(l, []byte("\n")))
		if err != nil {
			return err
		}
		records = append(records, r)
	}
	for wait := 100 * time.Millisecond; len(records) > 0; wait = min(2*wait, 30*time.Second) {
		err := k.client.ProduceSync(ctx, records...).FirstErr()
		if err == nil {
			break
		}
		if ctx.Err() != nil || !passes(err) {
			return fmt.Errorf("produce: %w", err)
		}
		k.warn(err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return at.Save(k.path)
}

// passes tells whether an error may pass when it is tried again.
func passes(err error) bool {
	var e *kerr.Error
	return !errors.As(err, &e) || e.Retriable
}

// message returns the message of a line.
func message(line []byte) (*kgo.Record, error) {
	var l struct {
		Row        Bytes     `json:"row"`
		Commit     time.Time `json:"commit"`
		Tiebreaker int32     `json:"tiebreaker"`
	}
	if err := json.Unmarshal(line, &l); err != nil {
		return nil, err
	}
	return &kgo.Record{Key: l.Row, Value: bytes.Clone(line), Timestamp: l.Commit, Headers: []kgo.RecordHeader{
		{Key: commitHeader, Value: []byte(l.Commit.Format(time.RFC3339Nano))}, {Key: tiebreakerHeader, Value: fmt.Append(nil, l.Tiebreaker)}}}, nil
}

// Close implements Sink.
func (k *Kafka) Close() error { k.client.Close(); return nil }
