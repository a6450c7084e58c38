package zk

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// A ServerName is how HBase names a server process.
type ServerName struct {
	Host string
	Port uint16
	// StartCode is the time, in ms since 1970, at which the process started.
	StartCode int64
}

// String returns host,port,startcode.
func (n ServerName) String() string { return fmt.Sprintf("%s,%d,%d", n.Host, n.Port, n.StartCode) }

// A Cluster is what clients look up in ZooKeeper.
type Cluster struct {
	// Root is the parent of the nodes, zookeeper.znode.parent of the clients.
	// Empty means "/hbase".
	Root string
	// ID is the cluster's id, a UUID.
	ID string
	// Master answers MasterService.
	Master ServerName
	// Meta serves hbase:meta.
	Meta ServerName
	// Servers are all servers that serve regions.
	Servers []ServerName
	// Tables says for each table, by HBase's name of it, whether it is enabled.
	// Only clients of HBase 1 look.
	Tables map[string]bool
}

// Tree returns the nodes of c as HBase's master and region servers write them.
func (c Cluster) Tree() *Tree {
	root := strings.TrimSuffix(clean(cmp.Or(c.Root, "/hbase")), "/")
	id := "master:" + fmt.Sprint(c.Master.Port)
	var clusterID, master, meta []byte
	clusterID = protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), c.ID)
	master = appendServer(nil, 1, c.Master)
	master = appendVarint(master, 2, 0) // rpc_version
	master = appendVarint(master, 3, 0) // info_port: no web page
	meta = appendServer(nil, 1, c.Meta)
	meta = appendVarint(meta, 2, 0)
	meta = appendVarint(meta, 3, regionOpen)
	nodes := map[string][]byte{
		root + "/hbaseid":            encode(id, clusterID),
		root + "/master":             encode(id, master),
		root + "/meta-region-server": encode(id, meta),
		root + "/running":            encode(id, nil),
		root + "/backup-masters":     nil,
		root + "/table":              nil,
		root + "/rs":                 nil,
	}
	for _, s := range c.Servers {
		nodes[root+"/rs/"+s.String()] = encode(id, nil)
	}
	for t, enabled := range c.Tables {
		state := uint64(tableDisabled)
		if enabled {
			state = tableEnabled
		}
		nodes[root+"/table/"+t] = encode(id, appendVarint(nil, 1, state))
	}
	return NewTree(nodes)
}

// The states of ZooKeeper.proto.
const (
	regionOpen    = 3
	tableEnabled  = 0
	tableDisabled = 1
)

// encode puts before a message what every node of HBase begins with: 0xFF, the
// writer's name with its length, eight bytes of salt included, and "PBUF".
func encode(writer string, message []byte) []byte {
	b := []byte{0xff}
	b = binary.BigEndian.AppendUint32(b, uint32(8+len(writer)))
	b = append(b, "\x00\x00\x00\x00\x00\x00\x00\x01"...)
	b = append(b, writer...)
	b = append(b, "PBUF"...)
	return append(b, message...)
}

func appendVarint(b []byte, num protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

func appendServer(b []byte, num protowire.Number, n ServerName) []byte {
	m := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), n.Host)
	m = appendVarint(m, 2, uint64(n.Port))
	m = appendVarint(m, 3, uint64(n.StartCode))
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), m)
}
