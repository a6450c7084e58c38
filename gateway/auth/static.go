package auth

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/gateway/auth/iam"
	"github.com/trestledb/trestle/gateway/auth/jws"
)

// A staticTokens is a file of tokens, by their SHA-256. A line of it is
//
//	TOKEN MEMBER
//
// where MEMBER is user:NAME or serviceAccount:EMAIL and TOKEN is 16 characters
// at least, or sha256: and the digest of the token in hexadecimal. Empty lines
// and lines that begin with # do not count.
type staticTokens struct {
	tokens   map[[sha256.Size]byte]*Principal
	modified time.Time
	size     int64
}

func (s *staticTokens) get(tok string) *Principal {
	if s == nil || len(s.tokens) == 0 {
		return nil
	}
	return s.tokens[sha256.Sum256(readOnlyBytes(tok))]
}

const minStatic = 16 // characters

// readStatic reads the file again if it is not as old has it. Tokens that are
// gone, or another account's now, are revoked.
func readStatic(path string, old *staticTokens) (*staticTokens, error) {
	info, err := os.Stat(path)
	if err != nil {
		return old, fmt.Errorf("look at the file of tokens: %w", err)
	}
	if old != nil && info.ModTime().Equal(old.modified) && info.Size() == old.size {
		return old, nil
	}
	if err := private(info); err != nil {
		return old, fmt.Errorf("file of tokens %s: %w", path, err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return old, fmt.Errorf("read the file of tokens: %w", err)
	}
	out, err := parseStatic(b)
	if err != nil {
		return old, fmt.Errorf("file of tokens %s: %w", path, err)
	}
	out.modified, out.size = info.ModTime(), info.Size()
	if old != nil {
		for sum, p := range old.tokens {
			if now := out.tokens[sum]; now != nil && now.Member == p.Member {
				out.tokens[sum] = p
			} else {
				p.revoked.Store(true)
			}
		}
	}
	return out, nil
}

func parseStatic(b []byte) (*staticTokens, error) {
	out := &staticTokens{tokens: map[[sha256.Size]byte]*Principal{}}
	var errs []error
	lines := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; lines.Scan(); n++ {
		f := strings.Fields(lines.Text())
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		// What is wrong is told without showing a secret.
		if len(f) != 2 {
			errs = append(errs, fmt.Errorf("line %d is not of the form TOKEN MEMBER", n))
			continue
		}
		kind, name, _ := strings.Cut(f[1], ":")
		var member string
		switch {
		case kind == "user" && name != "":
			member = iam.User(name)
		case kind == "serviceAccount" && strings.Contains(name, "@"):
			member = iam.ServiceAccount(name)
		default:
			errs = append(errs, fmt.Errorf("line %d: the member is neither user:NAME nor serviceAccount:EMAIL", n))
			continue
		}
		var sum [sha256.Size]byte
		if digest, ok := strings.CutPrefix(f[0], "sha256:"); ok {
			d, err := hex.DecodeString(digest)
			if err != nil || len(d) != len(sum) {
				errs = append(errs, fmt.Errorf("line %d: sha256: is not followed by 64 hexadecimal digits", n))
				continue
			}
			sum = [sha256.Size]byte(d)
		} else {
			if len(f[0]) < minStatic || len(f[0]) > jws.MaxSize || strings.Contains(f[0], ",") {
				errs = append(errs, fmt.Errorf("line %d: the token must have %d characters at least, and no comma", n, minStatic))
				continue
			}
			sum = sha256.Sum256([]byte(f[0]))
		}
		if out.tokens[sum] != nil {
			errs = append(errs, fmt.Errorf("line %d: the token is there twice", n))
			continue
		}
		out.tokens[sum] = &Principal{Member: member, scopes: allScopes, revoked: new(atomic.Bool)}
	}
	errs = append(errs, lines.Err())
	return out, errors.Join(errs...)
}
