package model

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/trestledb/trestle/compat/hbase/pb"
)

// A Server is a process as clients tell it from others: its start code changes
// with every start.
type Server struct {
	Host string
	Port uint32
	// StartCode is the time of the start in milliseconds.
	StartCode uint64
}

// Proto returns s as a message.
func (s Server) Proto() *pb.ServerName {
	return &pb.ServerName{HostName: proto.String(s.Host), Port: proto.Uint32(s.Port), StartCode: proto.Uint64(s.StartCode)}
}

// HostPort returns "host:port".
func (s Server) HostPort() string { return fmt.Sprintf("%s:%d", s.Host, s.Port) }

// String returns "host,port,startcode".
func (s Server) String() string { return fmt.Sprintf("%s,%d,%d", s.Host, s.Port, s.StartCode) }

// A Region is a range of rows of a table under a name of its own. Another
// range, or the same range after a change, is another Region.
type Region struct {
	Table Name
	// TableID is schema.Table.ID.
	TableID uint64
	// Start and End are the range [Start, End); an empty End is the table's.
	Start, End []byte
	// ID is a time in milliseconds, larger than that of the regions before it.
	ID uint64

	name    []byte
	encoded string
}

// metaName and metaEncoded are the names that HBase gives the only region of
// hbase:meta.
const (
	metaName    = "hbase:meta,,1"
	metaEncoded = "1588230740"
)

// MetaRegion is the region of hbase:meta.
var MetaRegion = &Region{Table: Meta, ID: 1, name: []byte(metaName), encoded: metaEncoded}

// NewRegion returns a region with its names.
func NewRegion(table Name, tableID uint64, start, end []byte, id uint64) *Region {
	r := &Region{Table: table, TableID: tableID, Start: bytes.Clone(start), End: bytes.Clone(end), ID: id}
	n := append([]byte(table.String()), ',')
	n = append(n, start...)
	n = append(n, ',')
	n = strconv.AppendUint(n, id, 10)
	sum := md5.Sum(n)
	r.encoded = hex.EncodeToString(sum[:])
	r.name = append(append(append(n, '.'), r.encoded...), '.')
	return r
}

// splitName returns the table and the id that a region's name has, the computed
// table without a name and 0 if it is none.
func splitName(name []byte) (Name, uint64) {
	table, rest, _ := bytes.Cut(name, []byte{','})
	rest, encoded, _ := cutLast(bytes.TrimSuffix(rest, []byte{'.'}), '.')
	_, id, ok := cutLast(rest, ',')
	n, err := strconv.ParseUint(string(id), 10, 64)
	if !ok || err != nil || len(encoded) == 0 {
		return Name{Namespace: SystemNamespace}, 0
	}
	return ParseName(string(table)), n
}

func cutLast(b []byte, sep byte) (before, after []byte, found bool) {
	if i := bytes.LastIndexByte(b, sep); i >= 0 {
		return b[:i], b[i+1:], true
	}
	return b, nil, false
}

// Name returns <table>,<start>,<id>.<encoded>., which is the region's row in
// hbase:meta.
func (r *Region) Name() []byte { return r.name }

// Encoded returns the MD5 of the name's first three parts.
func (r *Region) Encoded() string { return r.encoded }

// Contains tells whether the region has a row.
func (r *Region) Contains(key []byte) bool {
	return bytes.Compare(key, r.Start) >= 0 && (len(r.End) == 0 || bytes.Compare(key, r.End) < 0)
}

// Info returns r as a message.
func (r *Region) Info() *pb.RegionInfo {
	return &pb.RegionInfo{RegionId: proto.Uint64(r.ID), TableName: r.Table.Proto(), StartKey: r.Start, EndKey: r.End,
		Offline: proto.Bool(false), Split: proto.Bool(false), ReplicaId: proto.Int32(0)}
}

// Specifier returns what names r in a message.
func (r *Region) Specifier() *pb.RegionSpecifier {
	return &pb.RegionSpecifier{Type: pb.RegionSpecifier_REGION_NAME.Enum(), Value: r.name}
}

// String returns the name for people.
func (r *Region) String() string { return strconv.Quote(string(r.name)) }
