//go:build kafka

package feed

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
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
//	kafka://BROKER[:PORT][,BROKER...]/TOPIC[?OPTION=VALUE&...]
//
// The options are
//
//	tls=true             encrypt, and verify the brokers by the system's authorities
//	ca-file=FILE         by those of a PEM file instead; implies tls
//	cert-file, key-file  authenticate the caller by a certificate; implies tls
//	user, password-file  log in
//	sasl=MECHANISM       by SCRAM-SHA-512, which is the default, SCRAM-SHA-256 or PLAIN
//	max-message-bytes=N  the topic's max.message.bytes, by default that of Kafka
//
// PLAIN sends the password itself, and is refused without tls. A line that is longer than a
// message ends the feed. Files are read once. The position is kept at position.
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
	for name, values := range q {
		if !slices.Contains(kafkaParams, name) || len(values) > 1 {
			return nil, "", fmt.Errorf("%s has %q, or has it twice; known are %s", address, name, strings.Join(kafkaParams, ", "))
		}
	}
	// Idempotent and acknowledged by all replicas in sync, as is its default: an attempt
	// that is repeated after a lost answer adds nothing.
	opts = []kgo.Opt{kgo.SeedBrokers(strings.Split(hosts, ",")...), kgo.DefaultProduceTopic(topic), kgo.ClientID("trestle"),
		kgo.ProducerBatchCompression(kgo.Lz4Compression(), kgo.NoCompression())}
	if most := q.Get("max-message-bytes"); most != "" {
		n, err := strconv.ParseInt(most, 10, 32)
		if err != nil || n < 1024 || n > 1<<30 {
			return nil, "", fmt.Errorf("%s has max-message-bytes=%s, and not a number from 1024 to 1073741824", address, most)
		}
		opts = append(opts, kgo.ProducerBatchMaxBytes(int32(n)))
	}
	conf, err := kafkaTLS(q)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", address, err)
	}
	if conf != nil {
		opts = append(opts, kgo.DialTLSConfig(conf))
	}
	login, err := kafkaLogin(q, conf != nil)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", address, err)
	}
	if login != nil {
		opts = append(opts, kgo.SASL(login))
	}
	return opts, topic, nil
}

// kafkaParams are the options of a URL.
var kafkaParams = []string{"tls", "ca-file", "cert-file", "key-file", "user", "password-file", "sasl", "max-message-bytes"}

// kafkaTLS returns how to encrypt, nil for not at all.
func kafkaTLS(q url.Values) (*tls.Config, error) {
	ca, cert, key := q.Get("ca-file"), q.Get("cert-file"), q.Get("key-file")
	files := ca != "" || cert != "" || key != ""
	switch how := q.Get("tls"); {
	case how == "false" && files:
		return nil, errors.New("tls=false with ca-file, cert-file or key-file, which are for TLS")
	case how == "" && !files, how == "false":
		return nil, nil
	case how != "" && how != "true":
		return nil, fmt.Errorf("tls=%s, and not true or false", how)
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("read ca-file: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca-file %s has no certificate in PEM", ca)
		}
	}
	if (cert == "") != (key == "") {
		return nil, errors.New("cert-file and key-file belong together")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("read cert-file and key-file: %w", err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}

// kafkaLogin returns how to log in, nil for not at all.
func kafkaLogin(q url.Values, encrypted bool) (sasl.Mechanism, error) {
	user, file, how := q.Get("user"), q.Get("password-file"), q.Get("sasl")
	if user == "" && file == "" && how == "" {
		return nil, nil
	}
	if user == "" || file == "" {
		return nil, errors.New("a login takes user and password-file")
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read password-file: %w", err)
	}
	auth := scram.Auth{User: user, Pass: strings.TrimSpace(string(b))}
	switch how {
	case "", "SCRAM-SHA-512":
		return auth.AsSha512Mechanism(), nil
	case "SCRAM-SHA-256":
		return auth.AsSha256Mechanism(), nil
	case "PLAIN":
		if !encrypted {
			return nil, errors.New("sasl=PLAIN would send the password unencrypted: add tls=true")
		}
		return plain.Auth{User: auth.User, Pass: auth.Pass}.AsMechanism(), nil
	}
	return nil, fmt.Errorf("sasl=%s; SCRAM-SHA-512, SCRAM-SHA-256 and PLAIN are known", how)
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
		// A limit of the client's own would count from a message's time, which is long ago in
		// a feed that catches up.
		attempt, cancel := context.WithTimeout(ctx, deliveryLimit)
		err := k.client.ProduceSync(attempt, records...).FirstErr()
		cancel()
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

// deliveryLimit is after how long the owner is warned that brokers do not take messages.
const deliveryLimit = time.Minute

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
