package exec

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/trestledb/trestle/engine/query/algebra"
	"github.com/trestledb/trestle/engine/query/fragment"
	"github.com/trestledb/trestle/engine/query/functions"
	"github.com/trestledb/trestle/engine/query/types"
	"github.com/trestledb/trestle/engine/row"
	"github.com/trestledb/trestle/engine/scan"
)

// A fill is how a column of a Scan is made.
type fill uint8

const (
	fillNone       fill = iota // it is never NULL, and its values do not count
	fillKey                    // the row key
	fillField                  // a field of it
	fillCell                   // the newest cell of a column
	fillTime                   // its timestamp
	fillExists                 // whether there is one
	fillHistory                // all cells of a column
	fillMap                    // the newest cells of a family
	fillMapHistory             // all cells of a family
	fillStamp                  // the timestamp of the unpacked row
)

// A scanLayout says how cells become columns. It is read-only once made.
type scanLayout struct {
	fills  []fill
	types  []*types.Type
	fields []int // of fillField
	// families are those of which cells count, ascending.
	families []scanFamily
	nullable []int // columns that are NULL unless a cell says otherwise
	lists    []int // columns that are made of several cells
	keys     *algebra.KeySchema
	// keyColumns have the row key, and keyFields fields of it. keyColumn is one of the
	// former, -1 if there is none.
	keyColumns, keyFields []int
	keyColumn             int
	unpack                bool
	rows                  int // that a batch has at most
	// position asks for the key of the last row of a batch.
	position bool
}

// A scanFamily is what becomes of the cells of a family.
type scanFamily struct {
	name    string
	columns []scanColumn // by qualifier
	maps    []int
}

// A scanColumn is a column of cells, and the column that is made of it.
type scanColumn struct {
	qualifier string
	out       int
	fill      fill
	value     *types.Type
}

func newScanLayout(s *algebra.Scan, rows int) *scanLayout {
	l := &scanLayout{keys: s.Table.Key, keyColumn: -1, rows: rows, unpack: s.History != nil && s.History.Unpack}
	history := s.History != nil && s.History.WithHistory && !s.History.Unpack
	family := func(name string) *scanFamily {
		i, ok := slices.BinarySearchFunc(l.families, name, func(f scanFamily, n string) int { return strings.Compare(f.name, n) })
		if !ok {
			l.families = slices.Insert(l.families, i, scanFamily{name: name})
		}
		return &l.families[i]
	}
	for i := range s.Uses {
		u := &s.Uses[i]
		f, field := fillNone, 0
		if u.Index == algebra.TimestampColumn {
			f = fillStamp
			l.add(f, u.Type, 0)
			continue
		}
		c := &s.Table.Columns[u.Index]
		switch {
		case c.Kind == algebra.RowKeyColumn:
			if !u.Existence {
				f = fillKey
				l.keyColumn = i
				l.keyColumns = append(l.keyColumns, i)
			}
		case c.Kind == algebra.KeyColumn:
			// Even if the value does not count: a key may not decode.
			f, field = fillField, c.Field
			l.keyFields = append(l.keyFields, i)
		case u.Qualifier != nil:
			value := u.Type
			switch {
			case u.Existence:
				f = fillExists
			case u.WriteTime:
				f = fillTime
			case history:
				f, value = fillHistory, u.Type.Elem.Fields[1].Type
				l.lists = append(l.lists, i)
			default:
				f = fillCell
			}
			l.nullable = append(l.nullable, i)
			to := family(c.Family)
			to.columns = append(to.columns, scanColumn{qualifier: *u.Qualifier, out: i, fill: f, value: value})
		case u.Existence:
		default:
			if f = fillMap; history {
				f = fillMapHistory
			}
			l.lists = append(l.lists, i)
			to := family(c.Family)
			to.maps = append(to.maps, i)
		}
		l.add(f, u.Type, field)
	}
	for i := range l.families {
		slices.SortStableFunc(l.families[i].columns, func(a, b scanColumn) int { return strings.Compare(a.qualifier, b.qualifier) })
	}
	return l
}

func (l *scanLayout) add(f fill, t *types.Type, field int) {
	l.fills, l.types, l.fields = append(l.fills, f), append(l.types, t), append(l.fields, field)
}

// newBatch returns an empty batch.
func (l *scanLayout) newBatch() *scanBatch {
	n := len(l.fills)
	b := &scanBatch{vecs: make([]types.Vector, n), nulls: make([][]bool, n), set: make([]int, n)}
	b.batch.Cols = make([]*types.Vector, n)
	for i := range b.vecs {
		b.vecs[i].Type = l.types[i]
		b.batch.Cols[i] = &b.vecs[i]
	}
	for _, i := range l.nullable {
		b.nulls[i] = make([]bool, l.rows)
	}
	l.reset(b)
	return b
}

// reset empties a batch.
func (l *scanLayout) reset(b *scanBatch) {
	for i := range b.vecs {
		b.vecs[i].Resize(l.rows)
	}
	for _, i := range l.nullable {
		nulls := b.nulls[i]
		for k := range nulls {
			nulls[k] = true
		}
		b.set[i] = 0
	}
	b.batch.Len, b.batch.Sel = 0, nil
	b.bytes.reset()
	b.lists.reset()
	b.key = b.key[:0]
}

// finish makes b ready for the consumer.
func (l *scanLayout) finish(b *scanBatch) {
	n := b.batch.Len
	for i := range b.vecs {
		v := &b.vecs[i]
		switch l.fills[i] {
		case fillCell, fillTime, fillExists, fillHistory:
			if b.set[i] == n {
				v.Null = nil
			} else {
				v.Null = b.nulls[i][:n]
			}
		}
	}
}

// A scanSink is the scan.Writer that makes batches of rows. It serves one goroutine.
type scanSink struct {
	*scanLayout
	ctx   context.Context
	queue *scanQueue // nil: all rows go into b, which is large enough
	// direct, in place of queue, takes a batch at once.
	direct func(*types.Batch) error
	// fragment returns what the server of a tablet may do, nil if it is to give rows.
	fragment func() []byte
	// piece is coming. pieceCharged is what the longest so far was charged to the query.
	piece        []byte
	pieceCharged int
	b            *scanBatch
	n            int // rows of b that are complete
	share        *share
	err          error // of the current row

	open    bool
	probing bool   // key is kept, and used counts
	used    int64  // cells that became part of a column
	key     []byte // of the current row, if it is needed later
	row     uint64 // number of the current row, to tell what belongs to it
	family  int    // index of the family of the last cell
	at      int    // index of the column of the last cell in its family
	newest  []newest
	seen    []uint64 // of each family's column: the row that has set it
	offsets []int    // of the family's columns in seen
	pending [][]types.Value
	// versions are those of the last entry of a map with history.
	versions [][]types.Value
	fields   []types.Value
	scratch  []byte

	// Of unpacked rows.
	cells []unpackedCell
	held  arena
	// heldCharged is what of held and cells is charged to the query.
	heldCharged int64
	times       []int64

	// tell, if it is not 0, is after how long a batch is handed over with what there is, since
	// told. scanned is the last key that the reader has told of, when row was scannedRow.
	tell       time.Duration
	told       time.Time
	scanned    []byte
	scannedRow uint64
}

// newest is the last column of a family that went into a map.
type newest struct {
	row       uint64
	qualifier string
}

// An unpackedCell is a cell of a row that is still to be cut by timestamps.
type unpackedCell struct {
	family    int // -1 if only the timestamp counts
	qualifier string
	value     string
	timestamp int64
}

var _ scan.FragmentWriter = (*scanSink)(nil)

func newScanSink(ctx context.Context, l *scanLayout, q *scanQueue, sh *share) *scanSink {
	w := &scanSink{scanLayout: l, ctx: ctx, queue: q, share: sh, pending: make([][]types.Value, len(l.fills)),
		versions: make([][]types.Value, len(l.fills)), newest: make([]newest, len(l.families))}
	n := 0
	for i := range l.families {
		w.offsets = append(w.offsets, n)
		n += len(l.families[i].columns)
	}
	w.seen = make([]uint64, n)
	if l.keys != nil {
		w.fields = make([]types.Value, len(l.keys.Fields))
	}
	if q != nil {
		w.b = q.take()
	}
	if w.b == nil {
		w.b = l.newBatch()
	} else {
		l.reset(w.b) // another reader may have begun sooner, and filled it
	}
	return w
}

// again makes w ready for the rows of another run.
func (w *scanSink) again(ctx context.Context) {
	w.ctx, w.n, w.err, w.open = ctx, 0, nil, false
	w.drop()
	w.reset(w.b)
	w.b.charged, w.heldCharged = 0, 0
	for i := range w.newest {
		w.newest[i] = newest{}
	}
}

// StartRow implements scan.Writer.
func (w *scanSink) StartRow(key []byte) {
	w.open, w.err = true, nil
	if w.unpack {
		w.key = append(w.key[:0], key...)
		w.cells = w.cells[:0]
		w.held.reset()
		w.family = 0
		return
	}
	w.startRow(key)
}

func (w *scanSink) startRow(key []byte) {
	w.row++
	w.family, w.at = 0, 0
	if w.keyColumn >= 0 {
		// The one place where the key lies, of whatever is made of it.
		text := w.b.bytes.text(key)
		for _, i := range w.keyColumns {
			w.b.vecs[i].Strs[w.n] = text
		}
		key = bytesOf(text)
	}
	if len(w.keyFields) > 0 {
		w.decodeKey(key)
	}
	if w.probing || w.position && w.keyColumn < 0 {
		w.key = append(w.key[:0], key...)
	}
}

// decodeKey sets the columns that are fields of the key.
func (w *scanSink) decodeKey(key []byte) {
	if w.keyColumn < 0 {
		key = bytesOf(w.b.bytes.text(key))
	}
	if w.scratch, w.err = w.keys.Decode(w.fields, key, w.scratch[:0]); w.err != nil {
		return
	}
	for _, i := range w.keyFields {
		v := w.fields[w.scanLayout.fields[i]]
		if len(w.scratch) > 0 && len(v.Str) > 0 {
			v.Str = w.b.bytes.text(bytesOf(v.Str)) // it may lie in scratch
		}
		w.b.vecs[i].Set(w.n, v)
	}
}

// bytesOf returns s as bytes that are not to be changed.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// Cell implements scan.Writer.
func (w *scanSink) Cell(c *row.Cell) {
	if w.err != nil {
		return
	}
	if w.unpack {
		w.hold(c)
		return
	}
	if c.Labels != nil {
		return // it only tells that the row is there
	}
	for {
		if w.family == len(w.families) {
			return
		}
		name := w.families[w.family].name
		if name == c.Family {
			break
		}
		if name > c.Family {
			return
		}
		w.family++
		w.at = 0
	}
	w.cell(w.family, c.Qualifier, c.Timestamp, c.Value)
}

// cell puts a cell of a family into the columns that are made of it.
func (w *scanSink) cell(family int, qualifier []byte, timestamp int64, value []byte) {
	f := &w.families[family]
	for w.at < len(f.columns) && f.columns[w.at].qualifier < string(qualifier) {
		w.at++
	}
	seen := w.seen[w.offsets[family]:]
	for i := w.at; i < len(f.columns); i++ {
		c := &f.columns[i]
		if c.qualifier != string(qualifier) {
			break
		}
		if c.fill == fillHistory {
			w.used++
			w.addHistory(c.out, c.value, timestamp, value)
			seen[i] = w.row
			continue
		}
		if seen[i] == w.row {
			continue // an older version
		}
		seen[i] = w.row
		w.used++
		v := &w.b.vecs[c.out]
		switch c.fill {
		case fillTime:
			v.Ints[w.n] = timestamp
		case fillExists:
			if v.Strs != nil {
				v.Strs[w.n] = ""
			}
		default:
			if v.Strs != nil && c.value.Kind != types.String {
				v.Strs[w.n] = w.b.bytes.text(value)
			} else {
				v.Set(w.n, w.value(c.value, value))
			}
		}
		w.b.nulls[c.out][w.n] = false
		w.b.set[c.out]++
	}
	if len(f.maps) > 0 {
		w.used++
		w.addToMaps(family, qualifier, timestamp, value)
	}
}

// value returns the value of a cell as a value of SQL.
func (w *scanSink) value(t *types.Type, b []byte) types.Value {
	switch t.Kind {
	case types.Int64:
		if len(b) != 8 {
			w.err = functions.Errorf("A cell of an INT64 column family has %d bytes instead of 8", len(b))
			return types.Null
		}
		return types.NewInt(int64(binary.BigEndian.Uint64(b)))
	case types.String:
		if !utf8.Valid(b) {
			w.err = functions.Errorf("A cell of a STRING column family is not valid UTF-8")
			return types.Null
		}
	}
	return types.NewString(w.b.bytes.text(b))
}

// addHistory adds a version to the list of column out.
func (w *scanSink) addHistory(out int, t *types.Type, timestamp int64, value []byte) {
	pair := w.b.lists.room(2)
	pair[0], pair[1] = types.NewInt(timestamp), w.value(t, value)
	w.pending[out] = append(w.pending[out], types.NewList(pair))
}

// addToMaps adds a cell to the columns that are the whole family.
func (w *scanSink) addToMaps(family int, qualifier []byte, timestamp int64, value []byte) {
	last := &w.newest[family]
	again := last.row == w.row && last.qualifier == string(qualifier)
	if !again {
		last.row, last.qualifier = w.row, w.b.bytes.text(qualifier)
	}
	for _, out := range w.families[family].maps {
		t := w.types[out].Elem
		if w.fills[out] == fillMap {
			if !again {
				w.pending[out] = append(w.pending[out], types.NewString(last.qualifier), w.value(t, value))
			}
			continue
		}
		if !again {
			w.closeVersions(out)
			w.pending[out] = append(w.pending[out], types.NewString(last.qualifier), types.Null)
		}
		pair := w.b.lists.room(2)
		pair[0], pair[1] = types.NewInt(timestamp), w.value(t.Elem.Fields[1].Type, value)
		w.versions[out] = append(w.versions[out], types.NewList(pair))
	}
}

// closeVersions makes the versions of a map's last entry its value.
func (w *scanSink) closeVersions(out int) {
	if n := len(w.pending[out]); n > 0 {
		list := w.b.lists.room(len(w.versions[out]))
		copy(list, w.versions[out])
		w.versions[out] = w.versions[out][:0]
		w.pending[out][n-1] = types.NewList(list)
	}
}

// EndRow implements scan.Writer.
func (w *scanSink) EndRow() (full bool, err error) {
	w.open = false
	if w.err != nil {
		return false, w.err
	}
	if w.unpack {
		return w.unpackRow()
	}
	return w.endRow()
}

func (w *scanSink) endRow() (full bool, err error) {
	for _, i := range w.lists {
		list := w.pending[i]
		switch w.fills[i] {
		case fillHistory:
			if len(list) == 0 {
				continue
			}
			w.b.nulls[i][w.n] = false
			w.b.set[i]++
		case fillMapHistory:
			w.closeVersions(i)
			list = w.pending[i]
		}
		to := w.b.lists.room(len(list))
		copy(to, list)
		w.b.vecs[i].Lists[w.n] = to
		w.pending[i] = list[:0]
	}
	w.n++
	if held := w.b.held(); held > w.b.charged+chunkBytes {
		if err := w.share.need(held - w.b.charged); err != nil {
			return false, err
		}
		w.b.charged = held
	}
	if w.n == w.rows || w.b.size() >= passBytes {
		return w.pass()
	}
	return false, nil
}

// passBytes is the size from which a batch is handed over though it has few rows.
const passBytes = 256 << 10

// pass hands the batch over and begins another.
func (w *scanSink) pass() (full bool, err error) {
	if w.direct != nil {
		w.b.batch.Len = w.n
		w.finish(w.b)
		err := w.direct(&w.b.batch)
		w.reset(w.b)
		w.n = 0
		return false, err
	}
	if w.queue == nil {
		return false, nil
	}
	b := w.b
	b.batch.Len = w.n
	if w.position {
		switch {
		case w.passed():
			b.key = append(b.key[:0], w.scanned...)
		case w.keyColumn >= 0 && !w.unpack:
			b.key = append(b.key[:0], b.vecs[w.keyColumn].Strs[w.n-1]...)
		default:
			b.key = append(b.key[:0], w.key...)
		}
	}
	if w.tell > 0 {
		w.told = time.Now()
	}
	w.finish(b)
	w.n = 0
	w.b, full = w.queue.put(b)
	if w.b == nil {
		w.b = w.newBatch()
		return full, nil
	}
	w.reset(w.b)
	if held := w.b.held(); held < w.b.charged {
		w.share.grow(held - w.b.charged)
		w.b.charged = held
	}
	return full, nil
}

// Scanned implements scan.Writer.
func (w *scanSink) Scanned(key []byte) {
	if w.tell > 0 {
		w.scanned, w.scannedRow = append(w.scanned[:0], key...), w.row
	}
}

// passed tells whether the reader has told of a key, and given no row since.
func (w *scanSink) passed() bool { return len(w.scanned) > 0 && w.scannedRow == w.row }

// Flush implements scan.Writer. It drops a row that a failed read has left.
func (w *scanSink) Flush() error {
	if w.open {
		w.open = false
		w.drop()
	}
	if w.queue == nil {
		return nil
	}
	late := w.tell > 0 && w.passed() && time.Since(w.told) >= w.tell
	if late || w.n > 0 && w.queue.starving() {
		if _, err := w.pass(); err != nil {
			return err
		}
	}
	return w.queue.wait(w.ctx)
}

// drop forgets what there is of the current row.
func (w *scanSink) drop() {
	for _, i := range w.lists {
		w.pending[i], w.versions[i] = w.pending[i][:0], w.versions[i][:0]
	}
	for _, i := range w.nullable {
		if !w.b.nulls[i][w.n] {
			w.b.nulls[i][w.n] = true
			w.b.set[i]--
		}
	}
}

// end hands over what is left.
func (w *scanSink) end() error {
	if w.n == 0 {
		return nil
	}
	_, err := w.pass()
	return err
}

// Encoding implements scan.EncodedWriter: pieces are what a server makes of a fragment.
func (w *scanSink) Encoding() uint64 {
	if w.fragment == nil || w.probing || w.fragment() == nil {
		return 0
	}
	return fragment.Encoding
}

// Fragment implements scan.FragmentWriter.
func (w *scanSink) Fragment() []byte { return w.fragment() }

// maxPiece bounds a piece: a server passes on what it has long before.
const maxPiece = 512 << 20

// Room implements scan.EncodedWriter.
func (w *scanSink) Room(n int) ([]byte, error) {
	if n <= 0 || len(w.piece)+n > maxPiece {
		return nil, errBadPiece
	}
	// Memory comes as bytes do.
	n = min(n, max(64<<10, len(w.piece)))
	at := len(w.piece)
	if more := at + n - w.pieceCharged; more > 0 {
		if err := w.share.need(int64(more)); err != nil {
			return nil, err
		}
		w.pieceCharged = at + n
	}
	w.piece = slices.Grow(w.piece, n)[:at+n]
	return w.piece[at:], nil
}

// Encoded implements scan.EncodedWriter.
func (w *scanSink) Encoded(p *scan.Piece) (full bool, err error) {
	if p.Open {
		return false, errBadPiece
	}
	if err := w.end(); err != nil {
		return false, err
	}
	b := &scanBatch{piece: w.piece, key: slices.Clone(p.Key)}
	w.piece = nil
	_, full = w.queue.put(b)
	return full, nil
}

// hold keeps a cell of a row that is to be unpacked.
func (w *scanSink) hold(c *row.Cell) {
	u := unpackedCell{family: -1, timestamp: c.Timestamp}
	for c.Labels == nil && w.family < len(w.families) && w.families[w.family].name <= c.Family {
		if w.families[w.family].name == c.Family {
			u.family, u.qualifier, u.value = w.family, w.held.text(c.Qualifier), w.held.text(c.Value)
			break
		}
		w.family++
	}
	w.cells = append(w.cells, u)
	if held := int64(w.held.held) + int64(cap(w.cells))*int64(unsafe.Sizeof(u)); held > w.heldCharged+chunkBytes {
		w.err = w.share.need(held - w.heldCharged)
		w.heldCharged = held
	}
}

// unpackRow makes a row of each timestamp, the newest first.
func (w *scanSink) unpackRow() (full bool, err error) {
	w.times = w.times[:0]
	for i := range w.cells {
		w.times = append(w.times, w.cells[i].timestamp)
	}
	slices.Sort(w.times)
	w.times = slices.Compact(w.times)
	// Cells are put in order of their timestamps; within one they keep theirs.
	slices.SortStableFunc(w.cells, func(a, b unpackedCell) int {
		switch {
		case a.timestamp > b.timestamp:
			return -1
		case a.timestamp < b.timestamp:
			return 1
		}
		return 0
	})
	key, cells := w.key, w.cells
	for _, at := range slices.Backward(w.times) {
		w.startRow(key)
		for i, f := range w.fills {
			if f == fillStamp {
				w.b.vecs[i].Ints[w.n] = at
			}
		}
		family := -1
		for len(cells) > 0 && cells[0].timestamp == at {
			if c := &cells[0]; c.family >= 0 {
				if c.family != family {
					family, w.at = c.family, 0
				}
				w.cell(c.family, bytesOf(c.qualifier), c.timestamp, bytesOf(c.value))
			}
			cells = cells[1:]
		}
		if w.err != nil {
			w.drop()
			return false, w.err
		}
		f, err := w.endRow()
		if err != nil {
			return false, err
		}
		full = full || f
	}
	return full, nil
}
