package settings

import (
	"log/slog"
	"strings"
	"time"
)

// Serve is the configuration of `trestle serve`.
type Serve struct {
	DataDir      string
	Temporary    bool
	Listen       string
	HTTPListen   string // empty: no HTTP
	DebugListen  string // empty: no profiler
	Console      string // On, Read or Off
	Memory       int64  // bytes
	Durability   string // Sync or Async
	SplitRate    int64  // rows per second; -1: off
	Emulator     bool
	Transport    string // Own or GRPCGo
	Sessions     string // On or Off
	Streams      int64  // change streams that are read at a time
	ChangesMax   int64  // bytes of change files that are kept for clients; 0: no bound
	Insecure     bool
	TLSAuto      bool
	TLSCert      string // empty: none, as for the files below
	TLSKey       string
	TLSClientCA  string
	Names        string // by which clients reach the server, separated by commas
	Auth         string // On or Off
	TokenFile    string
	OIDCIssuer   string
	OIDCAudience string
	OIDCSecret   string // file; empty: the console has no secret with oidc-issuer
	AuditLog     string // AuditToLog, Off or a file
	AuditData    bool
	HBaseListen  string // empty: no HBase, as for the next
	HBaseZK      string
	HBaseName    string // HOST or HOST:PORT; empty: that of HBaseListen
	HBasePlace   string // PROJECT/INSTANCE
	HBaseTrust   bool
	ExportStore  string // empty: none
	Zone         string
	Cluster      string
	SlowRequest  time.Duration // 0: none is slow
	SlowLog      bool
	SlowKeys     bool
	OTLPEndpoint string  // empty: no traces
	TraceSample  float64 // 0 to 1
	LogFormat    string  // Text or JSON
	LogLevel     slog.Level
}

// The values of Serve.Durability.
const (
	Sync  = "sync"
	Async = "async"
)

// The values of Serve.LogFormat.
const (
	Text = "text"
	JSON = "json"
)

// On is the other value of what can be Off.
const On = "on"

// The values of Serve.Transport.
const (
	Own    = "trestle"
	GRPCGo = "grpc-go"
)

// Read as Serve.Console lets the console change nothing.
const Read = "read"

// AuditToLog as Serve.AuditLog writes the audit log among other lines.
const AuditToLog = "log"

// TLS tells whether the server speaks TLS.
func (c *Serve) TLS() bool { return c.TLSAuto || c.TLSCert != "" }

// ServerNames returns the host names by which clients reach the server.
func (c *Serve) ServerNames() []string {
	if c.Names == "" {
		return nil
	}
	return strings.Split(c.Names, ",")
}

// AuthOn tells whether callers must say who they are.
func (c *Serve) AuthOn() bool { return c.Auth == On }

// table is every setting there is, in the order in which help and `trestle
// config` show them.
func (c *Serve) table() []setting {
	return []setting{
		{"data-dir", "./trestle-data", "directory that holds the data; created if it is not there", text(&c.DataDir)},
		{"temporary", "false", "keep the data in a new temporary directory and remove it at exit", boolean(&c.Temporary)},
		{"listen", "127.0.0.1:8086", "HOST:PORT (or /path of a unix socket) of the Bigtable gRPC API", address(&c.Listen, false)},
		{"http-listen", "127.0.0.1:8087", "HOST:PORT of the admin API as REST, /token, /metrics, /healthz, /livez, /readyz and, on a loopback address, /admin; \"off\" for none", address(&c.HTTPListen, true)},
		{"debug-listen", "off", "loopback HOST:PORT of the Go profiler (/debug/pprof); \"off\" for none", address(&c.DebugListen, true)},
		{"console", On, "on: a console for browsers below /console/ of http-listen; read: one that changes nothing; off: none. It needs a loopback address, or auth and TLS", oneOf(&c.Console, On, Read, Off)},
		{"memory", "25%", "memory for data, caches and requests, beside some 45 MiB for the program itself: bytes, or with KiB, MiB, GiB, or % of what the machine or its cgroup has", memory(&c.Memory)},
		{"durability", Sync, "sync: a write is on disk before it is answered; async: at most about a second later", oneOf(&c.Durability, Sync, Async)},
		{"split-rate", "10000", "rows read or written per second from which on a tablet that takes most of the load for a minute is split; \"off\" for never", rate(&c.SplitRate)},
		{"sessions", On, "on: clients that know sessions use them for single rows; off: none can be opened", oneOf(&c.Sessions, On, Off)},
		{"transport", Own, "what serves HTTP/2 connections: trestle, or grpc-go, which is slower; for comparison, or if a client has trouble", oneOf(&c.Transport, Own, GRPCGo)},
		{"max-change-streams", "10000", "change streams that can be read at a time", count(&c.Streams)},
		{"change-stream-max", "0", "disk space for the changes that a process's tablets keep for change streams: beyond it the oldest are dropped before their retention ends, loudly; 0 for no bound", size(&c.ChangesMax)},
		{"emulator", "false", "accept any project and instance without creating it first", boolean(&c.Emulator)},
		{"insecure", "false", "allow to listen on addresses that others can reach, without TLS and authentication", boolean(&c.Insecure)},
		{"tls-auto", "false", "speak TLS with a certificate that is made in the data directory, signed by an authority that is made there too; the processes of a cluster share one", boolean(&c.TLSAuto)},
		{"tls-cert", "", "speak TLS with the certificate chain in this PEM file; it is read again when it changes", file(&c.TLSCert)},
		{"tls-key", "", "PEM file with the key of tls-cert", file(&c.TLSKey)},
		{"tls-client-ca", "", "PEM file with the authorities of client certificates, which are accepted as credentials", file(&c.TLSClientCA)},
		{"names", "", "host names by which clients reach the server, separated by commas: for tls-auto, and as audience of tokens", list(&c.Names)},
		{"auth", Off, "on: callers must have credentials, and may do what policies allow (see trestle iam)", oneOf(&c.Auth, Off, On)},
		{"token-file", "", "file of static tokens, one \"TOKEN MEMBER\" per line, that only its owner may read", file(&c.TokenFile)},
		{"oidc-issuer", "", "URL of an OpenID Connect provider whose tokens are accepted", file(&c.OIDCIssuer)},
		{"oidc-audience", "", "audience that tokens of oidc-issuer must be for: the console's client id", file(&c.OIDCAudience)},
		{"oidc-secret-file", "", "file with the console's client secret, if oidc-issuer gave it one", file(&c.OIDCSecret)},
		{"audit-log", AuditToLog, "where to write who did what: log (with everything else), off, or a file for JSON lines", text(&c.AuditLog)},
		{"audit-data", "false", "audit requests for data too, not only administrative ones", boolean(&c.AuditData)},
		{"hbase-listen", Off, "HOST:PORT for HBase clients, of all services; \"off\" for none", address(&c.HBaseListen, true)},
		{"hbase-zookeeper-listen", Off, "HOST:PORT of a read-only ZooKeeper by which HBase clients find the server; \"off\" for none", address(&c.HBaseZK, true)},
		{"hbase-advertise", "", "HOST or HOST:PORT that HBase clients are told to connect to; empty for the first of names, or hbase-listen", file(&c.HBaseName)},
		{"hbase-instance", "default/default", "PROJECT/INSTANCE that is HBase's default namespace; other namespaces are other instances of the project", text(&c.HBasePlace)},
		{"hbase-trust-users", "false", "with auth: believe HBase clients the user names that they give, as HBase does without Kerberos", boolean(&c.HBaseTrust)},
		{"export-store", "", "where exported backups are, and nothing else: file:///DIR on this machine or mounted there, or s3:// or hdfs:// as for the store of a cluster; empty: none can be exported or imported", store(&c.ExportStore)},
		{"zone", "local-a", "zone that clients are told they talk to", name(&c.Zone)},
		{"cluster", "trestle", "cluster that clients are told they talk to", name(&c.Cluster)},
		{"slow-request", "1s", "time from which on a request is slow; the last 1,000 of them are kept in memory; \"off\" for none", timeOrOff(&c.SlowRequest)},
		{"slow-log", "false", "write slow requests to the log too; a long scan that is well is one", boolean(&c.SlowLog)},
		{"slow-keys", "false", "keep the first row key of a slow request", boolean(&c.SlowKeys)},
		{"otlp-endpoint", Off, "http:// or https://HOST:PORT of an OpenTelemetry collector that traces of requests are sent to (OTLP over gRPC); \"off\" for none", collector(&c.OTLPEndpoint)},
		{"trace-sample", "1%", "part of the requests that is traced, of those that come without a trace", percent(&c.TraceSample)},
		{"log-format", Text, "format of the log on stderr: text or json", oneOf(&c.LogFormat, Text, JSON)},
		{"log-level", "info", "least severe level to log: debug, info, warn or error; debug shows row keys", level(&c.LogLevel)},
	}
}
