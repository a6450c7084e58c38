// Package docs holds the documents of the tree against the tree: links and
// anchors lead somewhere, and the operator's reference names what operators see.
package docs
