package commitlog

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trestledb/trestle/engine/fault"
)

// DumpOptions choose what Dump prints.
type DumpOptions struct {
	// Records prints a line for each record, not only for each frame.
	Records bool
	// Describe, if set, adds what it returns to the line of a record.
	Describe func(Record) string
}

// Dump prints the segments, frames and records of the log in dir, each with a verdict, and
// goes on behind damage. It takes no lock and changes nothing; the end of a log that is in
// use may look torn. It prints all damage that Open or Replay would refuse, and then
// returns fault.Corruption if there was any, or an error of reading or of w.
func Dump(w io.Writer, fs vfs.FS, dir string, opts DumpOptions) error {
	files, free, err := listSegments(fs, dir)
	if err != nil {
		return fmt.Errorf("dump commit log: %w", err)
	}
	out := bufio.NewWriter(w)
	d := dumper{log: &FileLog{fs: fs, dir: dir, files: files, free: free}, out: out, opts: opts}
	if err := d.dump(); err != nil {
		return errors.Join(out.Flush(), fmt.Errorf("dump commit log: %w", err))
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if d.damage > 0 {
		return fault.New(fault.Corruption, "commit log %s: %d damaged places", dir, d.damage)
	}
	return nil
}

type dumper struct {
	log    *FileLog
	out    *bufio.Writer
	opts   DumpOptions
	damage int
}

func (d *dumper) printf(format string, args ...any) { fmt.Fprintf(d.out, format, args...) }

func (d *dumper) damaged(format string, args ...any) {
	d.damage++
	d.printf("  CORRUPT "+format+"\n", args...)
}

func (d *dumper) dump() error {
	// ends holds where the header of a later segment says that one ends.
	ends := make(map[uint64]uint32)
	named := make(map[uint64]bool)
	for _, f := range d.log.files {
		if f.state == headerValid {
			ends[f.header.prev.Segment] = f.header.prev.Offset
			named[f.header.prev.Segment] = true
		}
	}
	for _, n := range d.log.free {
		d.printf("%s  no part of the log, kept to be used again\n", freeName(n))
	}
	exists := make(map[uint64]bool)
	for i, f := range d.log.files {
		exists[f.number] = true
		data, err := d.log.read(f)
		if err != nil {
			return err
		}
		switch f.state {
		case headerBlank, headerBad:
			d.headless(f, data, named[f.number])
		case headerValid:
			d.printf("%s  %d bytes, incarnation %016x, after %v\n", segmentName(f.number), f.size, f.header.incarnation, f.header.prev)
			if prev := f.header.prev.Segment; prev != 0 && !exists[prev] && i > 0 {
				d.damaged("%s is missing", segmentName(prev))
			}
			end, sealed := ends[f.number]
			if !sealed {
				end = uint32(f.size)
			}
			d.segment(f, data, int(end), sealed)
		}
	}
	return nil
}

// headless prints a file without a valid segment header.
func (d *dumper) headless(f segmentFile, data window, named bool) {
	what := "allocated, not begun"
	if f.state == headerBad {
		what = "no valid segment header"
	}
	d.printf("%s  %d bytes, %s\n", segmentName(f.number), f.size, what)
	if named || provenDurable(data, f.header, 0) > 0 {
		d.damaged("at offset 0: damaged segment header")
	}
	d.frames(f, data, nextFrameHeader(data, f.header, 0))
}

// segment prints the frames of a segment up to end. A segment that is not
// sealed by the header of the next may have a torn tail.
func (d *dumper) segment(f segmentFile, data window, end int, sealed bool) {
	if end > data.end() {
		d.damaged("at offset %d: the file ends, the segment goes on to %d", data.end(), end)
		end = data.end()
	}
	off := segmentHeaderLen
	for off < end {
		fr, v := readFrame(data.until(uint32(end)), f.header, off)
		if v == frameWhole {
			d.frame(f, fr, v)
			off = int(fr.end())
			continue
		}
		next := nextFrameHeader(data.until(uint32(end)), f.header, off+1)
		switch {
		case sealed || provenDurable(data, f.header, off) > uint32(off):
			d.damaged("at offset %d: %s", off, string(v))
		case v == frameBadHeader && next < 0:
			d.printf("  end     at offset %d: what follows is of an earlier use of the file, or torn\n", off)
		default:
			d.printf("  end     at offset %d: %s\n", off, string(v))
		}
		if off = next; off < 0 {
			return
		}
		d.printf("  ...     at offset %d a frame follows\n", off)
	}
	d.printf("  end     at offset %d\n", off)
}

// frames prints what can be found from off on without a segment header.
func (d *dumper) frames(f segmentFile, data window, off int) {
	for off >= 0 {
		fr, _ := parseFrameHeader(data, f.number, off)
		fr, v := readFrame(data, segmentHeader{segment: f.number, incarnation: fr.incarnation}, off)
		d.frame(f, fr, v)
		off = nextFrameHeader(data, f.header, off+frameHeaderLen)
	}
}

func (d *dumper) frame(f segmentFile, fr frame, v verdict) {
	if fr.mark() {
		d.printf("  mark    at offset %d: closed cleanly\n", fr.offset)
		return
	}
	d.printf("  frame   at offset %d: %d bytes, %d records, durable below %d: %s\n", fr.offset, fr.length, fr.records, fr.durable, string(v))
	if v != frameWhole || !d.opts.Records && d.opts.Describe == nil {
		return
	}
	err := fr.eachRecord(f.number, func(r Record) error {
		d.printf("  record  at offset %d: tablet %x, seq %d+%d, %d bytes", r.Pos.Offset, r.Tablet, r.FirstSeq, r.N, len(r.Payload))
		if d.opts.Describe != nil {
			d.printf(" %s", d.opts.Describe(r))
		}
		d.printf("\n")
		return nil
	})
	if err != nil {
		d.damaged("%v", err)
	}
}
