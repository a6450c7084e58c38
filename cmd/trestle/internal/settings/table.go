package settings

import (
	"log/slog"
)

// Serve is the configuration of `trestle serve`.
type Serve struct {
	DataDir     string
	Temporary   bool
	Listen      string
	HTTPListen  string // empty: no HTTP
	DebugListen string // empty: no profiler
	Memory      int64  // bytes
	Durability  string // Sync or Async
	Emulator    bool
	Insecure    bool
	Zone        string
	Cluster     string
	LogFormat   string // Text or JSON
	LogLevel    slog.Level
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

// table is every setting there is, in the order in which help and `trestle
// config` show them.
func (c *Serve) table() []setting {
	return []setting{
		{"data-dir", "./trestle-data", "directory that holds the data; created if it is not there", text(&c.DataDir)},
		{"temporary", "false", "keep the data in a new temporary directory and remove it at exit", boolean(&c.Temporary)},
		{"listen", "127.0.0.1:8086", "HOST:PORT (or /path of a unix socket) of the Bigtable gRPC API", address(&c.Listen, false)},
		{"http-listen", "127.0.0.1:8087", "HOST:PORT of /metrics, /healthz, /livez and /readyz; \"off\" for none", address(&c.HTTPListen, true)},
		{"debug-listen", "off", "loopback HOST:PORT of the Go profiler (/debug/pprof); \"off\" for none", address(&c.DebugListen, true)},
		{"memory", "25%", "memory for caches and memtables: bytes, or with KiB, MiB, GiB, or % of what the machine or its cgroup has", memory(&c.Memory)},
		{"durability", Sync, "sync: a write is on disk before it is answered; async: at most about a second later", oneOf(&c.Durability, Sync, Async)},
		{"emulator", "false", "accept any project and instance without creating it first", boolean(&c.Emulator)},
		{"insecure", "false", "allow to listen on addresses that others can reach, without TLS or authentication", boolean(&c.Insecure)},
		{"zone", "local-a", "zone that clients are told they talk to", name(&c.Zone)},
		{"cluster", "trestle", "cluster that clients are told they talk to", name(&c.Cluster)},
		{"log-format", Text, "format of the log on stderr: text or json", oneOf(&c.LogFormat, Text, JSON)},
		{"log-level", "info", "least severe level to log: debug, info, warn or error; debug shows row keys", level(&c.LogLevel)},
	}
}
