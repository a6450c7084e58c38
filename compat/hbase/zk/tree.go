package zk

import (
	"bytes"
	"path"
	"slices"
	"strings"
)

// A Tree is a set of nodes. It does not change once made.
type Tree struct {
	nodes map[string]*node
}

// A node's times and versions are given when its tree is published.
type node struct {
	data     []byte
	children []string // names, sorted

	created, modified, childrenModified int64 // zxid of the publication
	version, childrenVersion            int32
	createTime, modifyTime              int64 // ms since 1970
}

// NewTree makes a tree of nodes by absolute path, such as "/hbase/master". The
// nodes above each are there too, empty unless given.
func NewTree(nodes map[string][]byte) *Tree {
	t := &Tree{nodes: map[string]*node{"/": {}}}
	for p, data := range nodes {
		t.add(clean(p)).data = bytes.Clone(data)
	}
	for _, n := range t.nodes {
		slices.Sort(n.children)
	}
	return t
}

func (t *Tree) add(p string) *node {
	if n, ok := t.nodes[p]; ok {
		return n
	}
	n := &node{}
	t.nodes[p] = n
	up := t.add(path.Dir(p))
	up.children = append(up.children, path.Base(p))
	return n
}

func clean(p string) string { return path.Clean("/" + p) }

// validPath tells whether p is a path as ZooKeeper wants one.
func validPath(p string) bool {
	return len(p) > 0 && len(p) <= maxPath && p[0] == '/' && p == path.Clean(p) && !strings.ContainsRune(p, 0)
}

// publish gives the nodes of t their times and versions: those of before where
// nothing has changed.
func (t *Tree) publish(before *Tree, zxid, now int64) *Tree {
	out := &Tree{nodes: make(map[string]*node, len(t.nodes))}
	for p, n := range t.nodes {
		c := *n
		c.created, c.modified, c.childrenModified = zxid, zxid, zxid
		c.createTime, c.modifyTime = now, now
		if old := before.nodes[p]; old != nil {
			c.created, c.createTime = old.created, old.createTime
			c.version, c.childrenVersion = old.version+1, old.childrenVersion+1
			if bytes.Equal(old.data, c.data) {
				c.modified, c.modifyTime, c.version = old.modified, old.modifyTime, old.version
			}
			if slices.Equal(old.children, c.children) {
				c.childrenModified, c.childrenVersion = old.childrenModified, old.childrenVersion
			}
		}
		out.nodes[p] = &c
	}
	return out
}

// appendStat appends a node's Stat. No node is ephemeral.
func (n *node) appendStat(b []byte) []byte {
	b = appendInt64(b, n.created)
	b = appendInt64(b, n.modified)
	b = appendInt64(b, n.createTime)
	b = appendInt64(b, n.modifyTime)
	b = appendInt32(b, n.version)
	b = appendInt32(b, n.childrenVersion)
	b = appendInt32(b, 0)
	b = appendInt64(b, 0)
	b = appendInt32(b, int32(len(n.data)))
	b = appendInt32(b, int32(len(n.children)))
	return appendInt64(b, n.childrenModified)
}
