package feed

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// A Position is how far the stream of a table has been read, in the form of its file.
type Position struct {
	Table string `json:"table"`
	// Offset is the length of the output file that belongs to it.
	Offset int64 `json:"offset,omitempty"`
	// Partitions are being read, or wait for more tokens.
	Partitions []*Partition `json:"partitions"`
}

// A Partition is a key range with the tokens to go on with.
type Partition struct {
	Start []byte `json:"start"`
	End   []byte `json:"end"`
	// From is where to begin while there is no token.
	From   time.Time `json:"from,omitzero"`
	Tokens []Token   `json:"tokens,omitempty"`

	reading bool
}

// A Token is a token of a key range.
type Token struct {
	Start []byte `json:"start"`
	End   []byte `json:"end"`
	Token string `json:"token"`
}

// ready tells whether p can be read: there is a start, or its tokens cover it.
func (p *Partition) ready() bool {
	if len(p.Tokens) == 0 {
		return !p.From.IsZero()
	}
	slices.SortFunc(p.Tokens, func(a, b Token) int { return bytes.Compare(a.Start, b.Start) })
	at := p.Start
	for i, t := range p.Tokens {
		if !bytes.Equal(t.Start, at) || i > 0 && len(at) == 0 {
			return false
		}
		at = t.End
	}
	return bytes.Equal(at, p.End)
}

// child returns the partition with these ends, which is added unless it is there.
func (s *Position) child(start, end []byte) *Partition {
	for _, p := range s.Partitions {
		if !p.reading && bytes.Equal(p.Start, start) && bytes.Equal(p.End, end) {
			return p
		}
	}
	p := &Partition{Start: start, End: end}
	s.Partitions = append(s.Partitions, p)
	slices.SortFunc(s.Partitions, func(a, b *Partition) int {
		return cmp.Or(bytes.Compare(a.Start, b.Start), bytes.Compare(a.End, b.End))
	})
	return p
}

func (s *Position) remove(p *Partition) {
	s.Partitions = slices.DeleteFunc(s.Partitions, func(o *Partition) bool { return o == p })
}

// Load reads the position of a table from a file, nil if there is none.
func Load(path, table string) (*Position, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := new(Position)
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%s is no position of a change stream: %w", path, err)
	}
	if s.Table != table {
		return nil, fmt.Errorf("%s is the position of a stream of %q, not of %s", path, s.Table, table)
	}
	return s, nil
}

// Save writes the position, all of it or nothing.
func (s *Position) Save(path string) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
