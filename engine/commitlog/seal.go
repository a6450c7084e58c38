package commitlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/trestledb/trestle/engine/fault"
	"github.com/trestledb/trestle/engine/objectstore"
)

const (
	// A fencer that has lost farAfter indexes to a writer that is alive puts a fence
	// farAhead of it. That bounds how long it can go on losing.
	farAfter = 16
	farAhead = 1024

	// readers is how many segments a replay reads at a time. A store may take some ten
	// milliseconds for each, and a log have some thousand.
	readers = 32
	// wholeBytes is the size up to which a segment is read whole, though only
	// some tablets are wanted: a request more costs as much.
	wholeBytes = 256 << 10
)

// Seal ends the log id for ever. When it returns, no record of it that is not in the log
// by now will be acknowledged, and those at or after from that were acknowledged are in
// [from, end). It is idempotent: all callers that seal from the same redo point get the
// same end. The writer learns of it at its next put.
//
// from is the redo point of a tablet, in a METADATA row that the log's owner can no longer
// change. Read it in the compare-and-set that takes the tablet from the owner, not before.
// Otherwise the owner may trim what is behind it, and the fence lands in the hole. The
// zero Pos stands for the oldest segment that is kept. It is for a caller that recovers
// all tablets of the log at once and knows that the log is not trimmed.
//
// It fails with fault.Corruption, a *DamagedError, if the log was trimmed beyond from, or
// if what is in the way is neither segment nor fence. After an error of the store the
// caller tries again. What without gives up it does not ask for.
func Seal(ctx context.Context, store objectstore.Store, id ID, from Pos, without GivenUp) (end Pos, err error) {
	end, err = seal(ctx, store, id, from, without)
	if err != nil {
		return Pos{}, fmt.Errorf("seal commit log %v: %w", id, err)
	}
	return end, nil
}

func seal(ctx context.Context, store objectstore.Store, id ID, from Pos, without GivenUp) (Pos, error) {
	if id == 0 || from != (Pos{}) && from.Log != id {
		return Pos{}, fault.New(fault.Invalid, "the redo point %v is not in it", from)
	}
	s := sealer{store: store, id: id, nonce: newIncarnation(), listed: map[uint64]int64{}, without: without}
	next := max(from.Segment, 1)
	newest, err := s.list(ctx, next)
	if err != nil {
		return Pos{}, err
	}
	if newest > 0 {
		// What the newest segment calls acknowledged need not be tried.
		h, err := readObjectHeader(ctx, store, id, newest)
		if err != nil {
			return Pos{}, damagedAt(id, newest, err)
		}
		if h.acked >= next {
			if from != (Pos{}) {
				if err := s.mustExist(ctx, next); err != nil {
					return Pos{}, err
				}
			}
			next = h.acked + 1
		}
	}
	for lost := 0; ; next++ {
		if _, ok := s.listed[next]; !ok && without.before(next) {
			return Pos{}, damagedAt(id, next, fault.New(fault.Corruption, "segment %s is missing, or was never stored: what would tell was given up", objectName(id, next)))
		}
		fenced, err := s.fence(ctx, next)
		if err != nil {
			return Pos{}, err
		}
		if fenced {
			return Pos{Log: id, Segment: next}, nil
		}
		if _, ok := s.listed[next]; ok || without.whole(next) {
			continue
		}
		if lost++; lost%farAfter == 0 && s.far < next {
			s.far = next + farAhead
			if _, err := s.fence(ctx, s.far); err != nil {
				return Pos{}, err
			}
		}
	}
}

// A sealer puts fences into one log.
type sealer struct {
	store  objectstore.Store
	id     ID
	nonce  uint64
	listed map[uint64]int64 // sizes of the objects that a listing showed
	far    uint64           // the last fence that was put ahead
	// without are indexes at which there is, or was, something that was given up.
	without GivenUp
}

// list finds the objects from index on, and the newest segment among them that
// was not given up: 0 if there is none.
func (s *sealer) list(ctx context.Context, from uint64) (newest uint64, err error) {
	infos, err := s.store.List(ctx, s.id.String()+"/", objectName(s.id, from-1), 0)
	if err != nil {
		return 0, err
	}
	for _, info := range infos {
		_, index, ok := parseObjectName(info.Name)
		if !ok {
			return 0, fault.New(fault.Corruption, "%s is no object of a commit log", info.Name)
		}
		s.listed[index] = info.Size
		if info.Size != fenceLen && !s.without.whole(index) {
			newest = max(newest, index)
		}
	}
	return newest, nil
}

// mustExist fails if the segment at index, which was acknowledged, is gone. The
// listing alone does not say so: it may be older than the segment.
func (s *sealer) mustExist(ctx context.Context, index uint64) error {
	if _, ok := s.listed[index]; ok || s.without.whole(index) {
		return nil
	}
	_, err := readObjectHeader(ctx, s.store, s.id, index)
	if errors.Is(err, fault.NotFound) {
		err = fault.New(fault.Corruption, "segment %d of the redo point is gone, though it was acknowledged: the log was trimmed too far", index)
	}
	return damagedAt(s.id, index, err)
}

// fence makes sure that there is an object at index, and reports whether it is
// a fence.
func (s *sealer) fence(ctx context.Context, index uint64) (bool, error) {
	size, ok := s.listed[index]
	if ok && (size != fenceLen || s.without.whole(index)) {
		return false, nil
	}
	delay := retryFirst
	for {
		err := s.put(ctx, index)
		if s.without.whole(index) && (err == nil || errors.Is(err, fault.AlreadyExists)) {
			return false, nil // the writer has no place here, and it is not the end
		}
		if err == nil {
			return true, nil
		}
		if errors.Is(err, fault.AlreadyExists) {
			var h objectHeader
			h, err = readObjectHeader(ctx, s.store, s.id, index)
			if err == nil {
				return h.kind == kindFence, nil
			}
			// If it is not found, it was collected just now, or the name is too new
			// for a cache of the file system's.
		}
		if k := fault.KindOf(err); k != 0 && k != fault.Unavailable && k != fault.Exhausted && k != fault.NotFound {
			return false, damagedAt(s.id, index, err)
		}
		select {
		case <-ctx.Done():
			return false, err
		case <-time.After(delay):
			delay = min(2*delay, retryMost)
		}
	}
}

func (s *sealer) put(ctx context.Context, index uint64) error {
	ctx, cancel := context.WithTimeout(ctx, putTimeout(fenceLen))
	defer cancel()
	return s.store.PutIfAbsent(ctx, objectName(s.id, index), fence(s.id, index, s.nonce))
}

// readObjectHeader reads the header of the object at index.
func readObjectHeader(ctx context.Context, store objectstore.Store, id ID, index uint64) (objectHeader, error) {
	r, err := store.Open(ctx, objectName(id, index))
	if err != nil {
		return objectHeader{}, err
	}
	b := make([]byte, min(r.Size(), objectHeaderLen))
	if err := errors.Join(r.ReadAt(ctx, b, 0), r.Close()); err != nil {
		return objectHeader{}, err
	}
	h, err := parseObjectHeader(b, id, index)
	if err == nil && (h.kind == kindFence) != (r.Size() == fenceLen) {
		err = h.corrupt("%d bytes for kind %d", r.Size(), h.kind)
	}
	return h, err
}

// ReplaySealed calls fn for the records of the sealed log id in [from, end), end
// being what Seal returned. Segments come in their order; within a segment
// records are grouped by tablet, those of one tablet in the order they were
// appended. If want is not nil, only records of tablets for which it returns
// true are read. An error of fn ends the replay and is returned as it is.
//
// It fails with fault.Corruption, a *DamagedError, if a segment is missing or not
// what was written; fn may have seen records before it. What without gives up is
// left out.
func ReplaySealed(ctx context.Context, store objectstore.Store, id ID, from, end Pos, without GivenUp, want func(tablet uint64) bool,
	fn func(Record) error,
) error {
	if from != (Pos{}) && from.Log != id || end.Log != id {
		return fault.New(fault.Invalid, "replay commit log %v: %v to %v are not in it", id, from, end)
	}
	var fnErr error
	var nonce uint64
	err := readSegments(ctx, store, id, max(from.Segment, 1), end.Segment, without, want, func(index uint64, s readSegment) error {
		if s.err == nil {
			s.err = s.sameWriter(&nonce)
		}
		if s.err != nil {
			return damagedAt(id, index, s.err)
		}
		var err error
		err, fnErr = s.eachRecord(id, index, without, func(r Record) error {
			if r.Pos.Less(from) {
				return nil
			}
			return fn(r)
		})
		return cmp.Or(fnErr, err)
	})
	if err != nil && fnErr == nil {
		err = fmt.Errorf("replay commit log %v: %w", id, err)
	}
	return err
}

// eachRecord calls fn for the records of segment index of a log that were wanted
// and are not given up. An error of fn ends it and is returned as second result.
func (s *readSegment) eachRecord(id ID, index uint64, without GivenUp, fn func(Record) error) (err, fnErr error) {
	for i := range s.extents {
		e := &s.extents[i]
		b, ok := s.data[e.tablet]
		if !ok || without.has(index, e.tablet) {
			continue
		}
		if err, fnErr = s.header.eachRecord(e, b, fn); err != nil || fnErr != nil {
			if err != nil {
				err = damagedAt(id, index, err)
			}
			return err, fnErr
		}
	}
	return nil, nil
}

// sameWriter returns an error unless a segment is by the writer of those before
// it, whose nonce it is given, 0 for the first.
func (s *readSegment) sameWriter(nonce *uint64) error {
	if *nonce == 0 {
		*nonce = s.header.nonce
	}
	if s.header.nonce != *nonce {
		return s.header.corrupt("it is of another writer than the one before")
	}
	return nil
}

// readSegments reads the segments from first on that are before end and are not given up
// as a whole. It reads several at a time, and calls each with them in their order. An
// error of each ends it.
func readSegments(ctx context.Context, store objectstore.Store, id ID, first, end uint64, without GivenUp, want func(uint64) bool,
	each func(index uint64, s readSegment) error,
) error {
	if first >= end {
		return nil
	}
	// Many a segment is a few rows: whose size is known is read by one request.
	infos, err := store.List(ctx, id.String()+"/", objectName(id, first-1), int(end-first))
	if err != nil {
		return err
	}
	small := map[uint64]bool{}
	for _, info := range infos {
		if _, i, ok := parseObjectName(info.Name); ok && info.Size <= wholeBytes {
			small[i] = true
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	type read struct {
		index uint64
		c     chan readSegment
	}
	reads := make(chan read, readers)
	running.Go(func() {
		defer close(reads)
		for i := first; i < end; i++ {
			if without.whole(i) {
				continue
			}
			c := make(chan readSegment, 1)
			select {
			case reads <- read{i, c}:
			case <-ctx.Done():
				return
			}
			running.Go(func() { c <- readObject(ctx, store, id, i, small[i], want) })
		}
	})
	for r := range reads {
		if err := each(r.index, <-r.c); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// A readSegment is a segment as read: the bytes of the extents that are wanted.
type readSegment struct {
	header  objectHeader
	extents []extent
	data    map[uint64][]byte // by tablet
	err     error
}

// readObject reads a segment, or what of it is wanted if it is not small.
func readObject(ctx context.Context, store objectstore.Store, id ID, index uint64, small bool, want func(uint64) bool) readSegment {
	s, err := tryReadObject(ctx, store, id, index, small, want)
	if errors.Is(err, fault.NotFound) {
		err = fault.New(fault.Corruption, "segment %s is missing", objectName(id, index))
	}
	s.err = err
	return s
}

func tryReadObject(ctx context.Context, store objectstore.Store, id ID, index uint64, small bool, want func(uint64) bool) (s readSegment, err error) {
	name := objectName(id, index)
	if small || want == nil {
		b, err := store.Get(ctx, name)
		if err != nil {
			return s, err
		}
		return decodeSegment(b, id, index, want)
	}
	r, err := store.Open(ctx, name)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	head := make([]byte, min(r.Size(), wholeBytes))
	if err := r.ReadAt(ctx, head, 0); err != nil {
		return s, err
	}
	if int64(len(head)) == r.Size() {
		return decodeSegment(head, id, index, want)
	}
	return readExtents(ctx, r, head, id, index, want)
}

// decodeSegment decodes a whole segment. Nothing of it is copied.
func decodeSegment(b []byte, id ID, index uint64, want func(uint64) bool) (s readSegment, err error) {
	if s.header, err = parseObjectHeader(b, id, index); err != nil {
		return s, err
	}
	if s.header.kind != kindSegment {
		return s, s.header.corrupt("a fence before the end of the log")
	}
	if s.extents, err = s.header.parseExtents(b[objectHeaderLen:], int64(len(b))); err != nil {
		return s, err
	}
	s.data = make(map[uint64][]byte, len(s.extents))
	for _, e := range s.extents {
		if want == nil || want(e.tablet) {
			s.data[e.tablet] = b[e.offset : e.offset+e.length]
		}
	}
	return s, nil
}

// A readable is an open object.
type readable interface {
	Size() int64
	ReadAt(ctx context.Context, p []byte, off int64) error
}

// readExtents reads the extents that are wanted of a large segment, whose
// beginning is head.
func readExtents(ctx context.Context, r readable, head []byte, id ID, index uint64, want func(uint64) bool) (s readSegment, err error) {
	if s.header, err = parseObjectHeader(head, id, index); err != nil {
		return s, err
	}
	if s.header.kind != kindSegment {
		return s, s.header.corrupt("a fence of %d bytes", r.Size())
	}
	indexed := head[objectHeaderLen:]
	if n := int64(s.header.extents) * extentLen; n > int64(len(indexed)) {
		if n > r.Size()-objectHeaderLen {
			return s, s.header.corrupt("damaged index")
		}
		indexed = make([]byte, n)
		if err := r.ReadAt(ctx, indexed, objectHeaderLen); err != nil {
			return s, err
		}
	}
	if s.extents, err = s.header.parseExtents(indexed, r.Size()); err != nil {
		return s, err
	}
	s.data = map[uint64][]byte{}
	for _, e := range s.extents {
		if !want(e.tablet) {
			continue
		}
		b := make([]byte, e.length)
		if err := r.ReadAt(ctx, b, int64(e.offset)); err != nil {
			return s, err
		}
		s.data[e.tablet] = b
	}
	return s, nil
}

// TrimSealed deletes the segments of the sealed log id before a redo point: no
// METADATA row may name an earlier one of that log. Its fences are never
// deleted, so a writer that was cut off long ago still meets one.
func TrimSealed(ctx context.Context, store objectstore.Store, id ID, before Pos) error {
	infos, err := store.List(ctx, id.String()+"/", "", 0)
	if err != nil {
		return fmt.Errorf("trim commit log %v: %w", id, err)
	}
	l := newSealedLog(id, infos)
	if err := objectstore.DeleteAll(ctx, store, l.before(before)); err != nil {
		return fmt.Errorf("trim commit log %v: %w", id, err)
	}
	return nil
}

func logsOf(infos []objectstore.Info) (logs []*sealedLog, err error) {
	for len(infos) > 0 {
		id, _, ok := parseObjectName(infos[0].Name)
		if !ok {
			return nil, fault.New(fault.Corruption, "%s is no object of a commit log", infos[0].Name)
		}
		n := slices.IndexFunc(infos, func(i objectstore.Info) bool { other, _, _ := parseObjectName(i.Name); return other != id })
		if n < 0 {
			n = len(infos)
		}
		logs = append(logs, newSealedLog(id, infos[:n]))
		infos = infos[n:]
	}
	return logs, nil
}

// A sealedLog is what is left of a log.
type sealedLog struct {
	id       ID
	segments []keptSegment // by index
	fences   []uint64      // indexes
}

// newSealedLog sorts the objects of a log.
func newSealedLog(id ID, infos []objectstore.Info) *sealedLog {
	l := &sealedLog{id: id}
	for _, info := range infos {
		switch _, index, ok := parseObjectName(info.Name); {
		case !ok:
		case info.Size == fenceLen:
			l.fences = append(l.fences, index)
		default:
			l.segments = append(l.segments, keptSegment{index: index, bytes: info.Size})
		}
	}
	return l
}

// below returns how many segments lie before a redo point.
func (l *sealedLog) below(before Pos) int {
	switch {
	case before.Log > l.id:
		return len(l.segments)
	case before.Log < l.id:
		return 0
	}
	n := 0
	for n < len(l.segments) && l.segments[n].index < before.Segment {
		n++
	}
	return n
}

// before returns the names of the segments before a redo point.
func (l *sealedLog) before(pos Pos) []string {
	var names []string
	for _, s := range l.segments[:l.below(pos)] {
		names = append(names, objectName(l.id, s.index))
	}
	return names
}
