// Package backups holds a run of a table's whole life with backups, through the
// official client: rows are loaded and backed up, the server is killed, the
// table deleted and restored twice, the backup deleted, and each time every cell
// is compared by a hash. It reports how long each step took and how many bytes it
// wrote, and looks at the data directory in the end.
package backups
