// Package hdfs keeps objects as files of an HDFS, which it reaches by WebHDFS:
// HTTP requests to the NameNode, which sends those that carry an object's bytes
// on to a DataNode.
//
//	<dir>/<name>                    an object; name may have slashes
//	<dir>/.tmp/<owner>.<nonce>/<n>  an object being written
//
// A file that is created under its own name is seen before it is whole, and one
// that is closed lies in a DataNode's memory. So an object is written to a
// temporary file with the flag SYNC_BLOCK, by which every DataNode of the
// pipeline syncs the file and its directory before the last byte is
// acknowledged, and renamed with the option NONE: the NameNode does that under
// its lock, refuses a name that is taken, and has the change in its journal, on
// disk, before it answers. A server that loses the flag is found out.
//
// Whatever becomes of the answers, the outcome of a rename is known, since no other
// process renames the temporary file. While it is there no attempt has succeeded, and each
// later one finds the same. If it is gone, an attempt has, unless another process removed
// the file. It would have removed the directory, which is this process's alone and is
// never made again under its name. See resolveRename.
//
// The decision record of 2026-11-22 tells what was found out about HDFS 3.4, and
// how. There is no Kerberos: the NameNode believes the name of the user.
package hdfs
