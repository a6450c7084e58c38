package feed

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// A Sink takes lines. When Write returns nil they are where they belong; the position
// that it is given is that after them, and is to be kept.
type Sink interface {
	Write(ctx context.Context, lines []byte, at *Position) error
	Close() error
}

// A Writer is a Sink that writes to W, and keeps the position in a file unless Path is
// empty. What was written since the position was last kept comes again after a crash.
type Writer struct {
	W    io.Writer
	Path string
}

// Write implements Sink.
func (w *Writer) Write(_ context.Context, lines []byte, at *Position) error {
	if _, err := w.W.Write(lines); err != nil {
		return err
	}
	if w.Path == "" {
		return nil
	}
	return at.Save(w.Path)
}

// Close implements Sink.
func (w *Writer) Close() error { return nil }

// A File is a Sink that appends to a file. The position says how long the file is, and
// what is behind that was written by a run that ended before it was kept: it is cut off
// and comes again. So every record is in the file once.
type File struct {
	f    *os.File
	path string
	n    int64
}

// OpenFile opens the file, whose position, nil if there is none, is kept at position.
func OpenFile(path, position string, at *Position) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	s := &File{f: f, path: position}
	size, err := f.Seek(0, io.SeekEnd)
	switch {
	case err != nil:
	case at == nil && size > 0:
		err = fmt.Errorf("%s is not empty, and there is no position in %s: give another file", path, position)
	case at != nil && size < at.Offset:
		err = fmt.Errorf("%s has %d bytes, and the position in %s is of %d: lines are missing", path, size, position, at.Offset)
	case at != nil:
		if err = f.Truncate(at.Offset); err == nil {
			s.n, err = f.Seek(at.Offset, io.SeekStart)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return s, nil
}

// Write implements Sink.
func (s *File) Write(_ context.Context, lines []byte, at *Position) error {
	n, err := s.f.Write(lines)
	s.n += int64(n)
	if err == nil && n > 0 {
		err = s.f.Sync()
	}
	if err != nil {
		return err
	}
	at.Offset = s.n
	return at.Save(s.path)
}

// Close implements Sink.
func (s *File) Close() error { return s.f.Close() }

// SignatureHeader has the HMAC-SHA256 of a request's body in hexadecimal digits.
const SignatureHeader = "Trestle-Signature"

// A Webhook is a Sink that posts lines to a URL until it answers with 2xx. After a
// crash the last lines come again: a record is known by its table, row, commit and
// tiebreaker.
type Webhook struct {
	URL, Path string
	Secret    []byte // empty: requests are not signed
	Client    http.Client
	Warn      func(error)
}

// Write implements Sink.
func (w *Webhook) Write(ctx context.Context, lines []byte, at *Position) error {
	for wait := 100 * time.Millisecond; len(lines) > 0; wait = min(2*wait, 30*time.Second) {
		retry, err := w.post(ctx, lines)
		if err == nil {
			break
		}
		if !retry || ctx.Err() != nil {
			return err
		}
		w.Warn(err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return at.Save(w.Path)
}

func (w *Webhook) post(ctx context.Context, lines []byte) (retry bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(lines))
	if err != nil {
		return false, err
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	if len(w.Secret) > 0 {
		h := hmac.New(sha256.New, w.Secret)
		h.Write(lines)
		req.Header.Set(SignatureHeader, "sha256="+hex.EncodeToString(h.Sum(nil)))
	}
	client := w.Client
	client.CheckRedirect = func(next *http.Request, via []*http.Request) error {
		if next.Method != http.MethodPost || len(via) >= 10 {
			return http.ErrUseLastResponse // a GET has no lines, and its answer says nothing of them
		}
		return nil
	}
	resp, err := client.Do(req)
	if err != nil {
		return true, err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	_ = resp.Body.Close()
	switch s := resp.StatusCode; {
	case s >= 200 && s < 300:
		return false, nil
	case s == http.StatusTooManyRequests, s == http.StatusRequestTimeout, s >= 500:
		return true, fmt.Errorf("%s answers %s", w.URL, resp.Status)
	case s >= 300 && s < 400:
		return false, fmt.Errorf("%s answers %s, and is to be given by the address that takes what is posted: %s", w.URL, resp.Status, resp.Header.Get("Location"))
	}
	return false, fmt.Errorf("%s answers %s", w.URL, resp.Status)
}

// Close implements Sink.
func (w *Webhook) Close() error { w.Client.CloseIdleConnections(); return nil }
