package settings

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Node is what a process of a cluster is told beside Serve.
type Node struct {
	Etcd           string // endpoints, separated by commas
	EtcdCA         string // empty: none, as for the files below
	EtcdCert       string
	EtcdKey        string
	Store          string
	Name           string // empty: of the host and the port
	ClusterListen  string
	ClusterAddress string // empty: where it listens
	ClusterCert    string
	ClusterKey     string
	ClusterCA      string
	TTL            time.Duration
	CommitInterval time.Duration
	CacheDir       string // empty: none
	CacheSize      int64
}

// A Role is what a process of a cluster is.
type Role string

// The roles.
const (
	TabletServer Role = "tabletserver"
	Master       Role = "master"
	Gateway      Role = "gateway"
	// Operator is a command that asks a cluster, or reads a data directory. It lives with
	// the environment and the file of any role, of which it takes the settings that lead
	// to the cluster. Only these are flags; who asks the cluster calls ValidateNode.
	Operator Role = "cluster"
	// Admin is a command that asks a server, or acts on a cluster if it has an etcd. It
	// has the environment and the file of any role, and shows few of the flags.
	Admin Role = "admin"
	// Probe is a command that asks a process of any role, where that runs: it has
	// the process's environment and file, and none of its flags.
	Probe Role = "probe"
)

// ofCluster are the settings of Serve that a process of a cluster does not
// have.
var notOfCluster = []string{"temporary", "durability", "split-rate"}

// ofMaster are those of Serve that a master has.
var ofMaster = []string{"data-dir", "http-listen", "debug-listen", "memory", "insecure", "cluster", "log-format", "log-level"}

// ofOperator are those that a command has which asks a cluster, beside those of
// etcd; ofAdmin those that say where this machine's server is.
var (
	ofOperator = []string{"cluster", "insecure", "store", "cluster-cert", "cluster-key", "cluster-ca"}
	ofAdmin    = []string{"http-listen", "tls-auto", "tls-cert"}
)

// NewClusterFlags returns the flags of a process of a cluster.
func NewClusterFlags(command string, role Role) *Flags {
	keep := func(name string) bool {
		switch role {
		case Probe, Admin:
			return true
		case TabletServer:
			return !slices.Contains(notOfCluster, name)
		case Gateway:
			return !slices.Contains(notOfCluster, name) && !slices.Contains([]string{"store", "export-store", "name", "cluster-listen", "cluster-address", "commit-interval", "cache-dir", "cache-size", "change-stream-max"}, name)
		case Master:
			return slices.Contains(ofMaster, name) || slices.Contains([]string{"store", "name", "ttl"}, name) || strings.HasPrefix(name, "etcd") || slices.Contains([]string{"cluster-cert", "cluster-key", "cluster-ca"}, name)
		}
		return slices.Contains(ofOperator, name) || strings.HasPrefix(name, "etcd")
	}
	set := &Set{role: role}
	var rows []setting
	for _, r := range append(set.Serve.table(), set.Node.table()...) {
		if keep(r.name) {
			rows = append(rows, r)
		} else if err := r.value.set(r.deflt); err != nil {
			panic(err) // a default is valid
		}
	}
	f := newFlags(command, set, rows)
	if role == Admin {
		f.Hide(func(name string) bool {
			return !slices.Contains(ofAdmin, name) && !slices.Contains(ofOperator, name) && !strings.HasPrefix(name, "etcd")
		})
	}
	return f
}

// Hide makes help leave out the settings of which hidden says so.
func (f *Flags) Hide(hidden func(name string) bool) {
	for i := range f.rows {
		f.Lookup(f.rows[i].name).Hidden = hidden(f.rows[i].name)
	}
}

func (n *Node) table() []setting {
	return []setting{
		{"etcd", "http://127.0.0.1:2379", "URLs of the etcd members, separated by commas: the lock service", endpoints(&n.Etcd)},
		{"etcd-ca", "", "PEM file with the authority of etcd's certificates", file(&n.EtcdCA)},
		{"etcd-cert", "", "PEM file with the certificate that is shown to etcd", file(&n.EtcdCert)},
		{"etcd-key", "", "PEM file with the key of etcd-cert", file(&n.EtcdKey)},
		{"store", "", "where SSTables and commit logs are: file:///DIR that all servers share, or s3://BUCKET/PREFIX?endpoint=HOST[:PORT][&region=R][&insecure=true] with credentials as AWS tools take them, or hdfs://HOST:PORT/DIR[?user=U][&namenode=HOST:PORT][&insecure=true], the HTTPS address of a NameNode, or with insecure its HTTP address", store(&n.Store)},
		{"name", "", "name of the server; no other living one may have it. Empty for one made of host and port", serverName(&n.Name)},
		{"cluster-listen", "127.0.0.1:8085", "HOST:PORT for the other servers of the cluster", address(&n.ClusterListen, false)},
		{"cluster-address", "", "HOST:PORT by which the other servers reach this one; empty for cluster-listen", file(&n.ClusterAddress)},
		{"cluster-cert", "", "PEM file with the certificate that servers of the cluster show each other", file(&n.ClusterCert)},
		{"cluster-key", "", "PEM file with the key of cluster-cert", file(&n.ClusterKey)},
		{"cluster-ca", "", "PEM file with the authority that signs certificates of this cluster's servers, and of nobody else", file(&n.ClusterCA)},
		{"ttl", "5s", "time after which a server that the lock service does not hear of is given up; the same for all servers", duration(&n.TTL, time.Second, time.Minute)},
		{"commit-interval", "0s", "least time between two writes of the commit log, for stores that charge for each or are slow", duration(&n.CommitInterval, 0, time.Minute)},
		{"cache-dir", Off, "directory on a local disk that keeps copies of the store's SSTables; \"off\" for none", directory(&n.CacheDir)},
		{"cache-size", "64GiB", "size of cache-dir", size(&n.CacheSize)},
	}
}

// ValidateNode returns what is wrong with the settings of Node that no single value
// shows, nil if nothing is.
func (s *Set) ValidateNode() error {
	var errs []error
	n := &s.Node
	given := 0
	for _, f := range []string{n.ClusterCert, n.ClusterKey, n.ClusterCA} {
		if f != "" {
			given++
		}
	}
	if given != 0 && given != 3 {
		errs = append(errs, errors.New("cluster-cert, cluster-key and cluster-ca go together"))
	}
	if (n.EtcdCert == "") != (n.EtcdKey == "") {
		errs = append(errs, errors.New("etcd-cert and etcd-key go together"))
	}
	if (s.role == TabletServer || s.role == Master) && n.Store == "" {
		errs = append(errs, errors.New("store: say where the cluster's data is, as in --store file:///srv/trestle"))
	}
	if s.role == TabletServer {
		if !s.Insecure && !IsLoopback(n.ClusterListen) && n.ClusterCA == "" {
			errs = append(errs, fmt.Errorf("cluster-listen (%s): others could reach %s, and servers do not show each other certificates: "+
				"use a loopback address, or cluster-cert, cluster-key and cluster-ca, or set insecure to allow it all the same", s.Origin("cluster-listen"), n.ClusterListen))
		}
	}
	for e := range strings.SplitSeq(n.Etcd, ",") {
		if u, err := url.Parse(e); err == nil && u.Scheme == "http" && !IsLoopback(u.Host) && !s.Insecure {
			errs = append(errs, fmt.Errorf("etcd (%s): others could change what %s answers: use https, or set insecure to allow it all the same", s.Origin("etcd"), e))
		}
	}
	return errors.Join(errs...)
}

func endpoints(p *string) value {
	return value{
		set: func(s string) error {
			var out []string
			for e := range strings.SplitSeq(s, ",") {
				e = strings.TrimSpace(e)
				if !strings.Contains(e, "://") {
					e = "http://" + e
				}
				if u, err := url.Parse(e); err != nil || u.Port() == "" || u.Scheme != "http" && u.Scheme != "https" {
					return fmt.Errorf("%q is not a URL with a port, such as https://etcd-1:2379", e)
				}
				out = append(out, e)
			}
			*p = strings.Join(out, ",")
			return nil
		},
		get: func() string { return *p }, kind: "URLS",
	}
}

func store(p *string) value {
	return value{
		set: func(s string) error {
			if s != "" {
				u, err := url.Parse(s)
				switch {
				case err != nil:
					return err
				case strings.Contains(s, "#") || u.Scheme == "file" && strings.Contains(s, "?"):
					return fmt.Errorf("the path of %q ends at its # or ?: write them %%23 and %%3F", s)
				case u.Scheme == "file" && u.Host == "" && strings.HasPrefix(u.Path, "/"):
				case u.Scheme == "s3" && u.Host != "" && u.Query().Get("endpoint") != "":
				case u.Scheme == "hdfs" && u.Port() != "" && strings.Trim(u.Path, "/") != "":
				case u.Scheme == "hdfs":
					return fmt.Errorf("%q is not of the form hdfs://HOST:PORT/DIR: the port is that of the NameNode's HTTPS (9871), or with insecure=true its HTTP (9870)", s)
				default:
					return fmt.Errorf("%q is none of file:///DIR, s3://BUCKET/PREFIX?endpoint=HOST and hdfs://HOST:PORT/DIR", s)
				}
			}
			*p = s
			return nil
		},
		get: func() string { return *p }, kind: "URL",
	}
}

// ServerName is what servers can be called: it is part of names of items and
// files.
var ServerName = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9_]{0,62}$`)

func serverName(p *string) value {
	return value{
		set: func(s string) error {
			if s != "" && !ServerName.MatchString(s) {
				return fmt.Errorf("%q does not match %s", s, ServerName)
			}
			*p = s
			return nil
		},
		get: func() string { return *p }, kind: "NAME",
	}
}

func duration(p *time.Duration, least, most time.Duration) value {
	return value{
		set: func(s string) error {
			d, err := time.ParseDuration(s)
			if err != nil || d < least || d > most {
				return fmt.Errorf("%q is not a time between %v and %v", s, least, most)
			}
			*p = d
			return nil
		},
		get: func() string { return p.String() }, kind: "TIME",
	}
}

// directory is a path or Off.
func directory(p *string) value {
	return value{
		set: func(s string) error {
			if *p = s; s == Off {
				*p = ""
			}
			return nil
		},
		get: func() string {
			if *p == "" {
				return Off
			}
			return *p
		},
		kind: "PATH",
	}
}

func size(p *int64) value {
	return value{
		set: func(s string) (err error) {
			*p, err = ParseBytes(s)
			return err
		},
		get: func() string { return formatBytes(*p) }, kind: "SIZE",
	}
}
