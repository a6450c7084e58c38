// Package views keeps a materialized view up to date: one Worker for each tablet of the
// table that has the contributions of its source's rows (engine/matview).
//
// A Worker reads the changes of the rows between its tablet's bounds, asks what the view's
// query makes of the changed rows as they are now, and compares that with the
// contributions it has. One batch of its tablet, durable as a whole or not at all, has
// the new contributions and an entry of the outbox: what the difference means to rows of
// the view. The entry is then sent to the tablets that have those rows, at least
// once and in order; they leave out what they have had. When it has arrived it is
// deleted.
//
//	changes of the source   the tablet                          the view's table
//	ReadChanges ─► keys ─► evaluate ─► contributions + outbox ─► ApplyView
//
// The position in the changes is not part of the batch. To evaluate a row once more
// changes nothing, since its contribution is what was evaluated last. So the position may
// be an earlier one: it is in the tablet's METADATA row.
//
// A tablet without a position, or with one from before what is kept of the changes, has
// all its rows evaluated (reconcile), in turns, and follows changes from before that on.
package views
