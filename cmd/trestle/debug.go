package main

import (
	"archive/zip"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cmd/trestle/internal/ops"
)

// debugLimit is how long collecting takes at most, beside a profile.
const debugLimit = time.Minute

// Bounds of a file that trestle debug zip has written.
const (
	maxZipFile  = 64 << 20
	maxZipFiles = 10_000
)

// debugCommand collects what may explain what servers do.
func debugCommand(p *process) *cobra.Command {
	own := pflag.NewFlagSet("zip", pflag.ContinueOnError)
	own.SortFlags = false
	withKeys := own.Bool("with-keys", false, "row keys as they are, and not their hashes")
	seconds := own.Int("profile", 5, "seconds for which the processors are profiled, 30 at most")
	dir := own.String("directory", "", "the data directory `DIR` of a server that is stopped, instead of servers that run")
	zipVerb := p.asks(adminVerb{use: "zip FILE", short: "collect settings, metrics, logs, stacks and profiles of all tablet servers", limit: debugLimit,
		long: "Writes to FILE what may explain what servers do: of the server that is asked and\nof all tablet servers the settings, metrics, last lines of the log, stacks and\n" +
			"profiles, and the list of tablets. Values of cells and secrets are not in it. Row\nkeys are hashed or left out, unless --with-keys is given.",
		flags: own, check: func([]string) error {
			if *seconds < 0 || *seconds > 30 {
				return errors.New("--profile takes seconds from 0 to 30")
			}
			return nil
		}, run: func(c *adminClient, args []string) error {
			z, err := newDebugZip(args[0], *withKeys)
			if err != nil {
				return err
			}
			if *dir != "" {
				err = z.directory(c.ctx, *dir)
			} else {
				err = z.servers(c, *seconds)
			}
			return z.close(err)
		}})
	show := p.verb("show FILE", "print what a file of debug zip has", "", nil, func(_ *cobra.Command, args []string) int {
		if err := showDebugZip(p.stdout, args[0]); err != nil {
			return p.failed(fmt.Errorf("%s: %w", args[0], err))
		}
		return exitOK
	})
	return p.group("debug", "collect what may explain what servers do", "Collects what may explain what servers do, into a file that can be given to others.", zipVerb, show)
}

// A debugZip is a file that is being written.
type debugZip struct {
	f    *os.File
	z    *zip.Writer
	name string
	salt []byte // of hashes; nil: keys are as they are
}

func newDebugZip(name string, withKeys bool) (*debugZip, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	z := &debugZip{f: f, z: zip.NewWriter(f), name: name}
	if !withKeys {
		z.salt = []byte(rand.Text())
	}
	return z, nil
}

// close ends the file, which is removed if err is not nil.
func (z *debugZip) close(err error) error {
	err = errors.Join(err, z.z.Close(), z.f.Close())
	if err != nil {
		err = errors.Join(err, os.Remove(z.name))
	}
	return err
}

// key returns what stands for a key in the file.
func (z *debugZip) key(k string) string {
	if z.salt == nil || k == "" {
		return k
	}
	h := hmac.New(sha256.New, z.salt)
	h.Write([]byte(k))
	return fmt.Sprintf("hash:%x", h.Sum(nil)[:8])
}

func (z *debugZip) add(name string, b []byte) error {
	w, err := z.z.Create(name)
	if err == nil {
		_, err = w.Write(b[:min(len(b), maxZipFile)])
	}
	return err
}

func (z *debugZip) addJSON(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return z.add(name, b)
}

func (z *debugZip) tablets(list []ops.Tablet) error {
	for i := range list {
		list[i].Start, list[i].End = z.key(list[i].Start), z.key(list[i].End)
	}
	return z.addJSON("tablets.json", list)
}

// servers collects of servers that run.
func (z *debugZip) servers(c *adminClient, seconds int) error {
	var got ops.CollectionList
	if err := c.callFor(c.ctx, "collect", http.MethodGet, fmt.Sprintf("/admin/debug?seconds=%d&keys=%t", seconds, z.salt == nil), nil, &got); err != nil {
		return err
	}
	for _, p := range got.Processes {
		dir := "processes/" + plainName(strings.ReplaceAll(p.Name, ".", "-")) + "/"
		for name, b := range p.Files {
			if strings.ContainsAny(name, `/\`) || strings.HasPrefix(name, ".") {
				continue
			}
			if err := z.add(dir+name, b); err != nil {
				return err
			}
		}
		if p.Error != "" {
			if err := z.add(dir+"errors.txt", []byte(p.Error)); err != nil {
				return err
			}
		}
	}
	// What some of the servers cannot tell is no reason to have nothing.
	var missing []string
	note := func(what string, err error) {
		if err != nil {
			missing = append(missing, what+": "+err.Error())
		}
	}
	var tablets ops.TabletList
	err := c.call(c.ctx, http.MethodGet, "/admin/tablets", nil, &tablets)
	note("tablets", err)
	if err == nil {
		if err := z.tablets(tablets.Tablets); err != nil {
			return err
		}
	}
	var servers ops.ServerList
	err = c.call(c.ctx, http.MethodGet, "/admin/servers", nil, &servers)
	note("servers", err)
	if err == nil {
		if err := z.addJSON("servers.json", servers.Servers); err != nil {
			return err
		}
	}
	if z.salt != nil {
		missing = append(missing, "findings: they name rows; trestle doctor prints them")
	} else {
		found, _, err := c.diagnose()
		note("findings", err)
		if err := z.addJSON("doctor.json", found); err != nil {
			return err
		}
	}
	return z.add("missing.txt", []byte(strings.Join(missing, "\n")))
}

// directory collects of the data directory of a stopped server.
func (z *debugZip) directory(ctx context.Context, dir string) error {
	if there, err := os.Stat(filepath.Join(dir, standalone.FormatName)); err != nil || there.IsDir() {
		return fmt.Errorf("%s is no data directory: %w", dir, err)
	}
	var list strings.Builder
	n := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if n++; n > 100_000 {
			return fs.SkipAll
		}
		if info, err := d.Info(); err == nil && !d.IsDir() {
			name, _ := filepath.Rel(dir, path)
			fmt.Fprintf(&list, "%12d  %s  %s\n", info.Size(), info.ModTime().UTC().Format(time.RFC3339), name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := z.add("files.txt", []byte(list.String())); err != nil {
		return err
	}
	format, err := os.ReadFile(filepath.Join(dir, standalone.FormatName))
	if err != nil {
		return err
	}
	if err := z.add("format.txt", format); err != nil {
		return err
	}
	s, err := standalone.OpenMetadata(ctx, vfs.Default, dir)
	if err != nil {
		return z.add("missing.txt", []byte("tablets: "+err.Error()))
	}
	defer func() { _ = s.Close(ctx) }() // nothing was written
	infos, err := s.Tablets(ctx, "")
	if err != nil {
		return z.add("missing.txt", []byte("tablets: "+err.Error()))
	}
	var out []ops.Tablet
	for i := range infos {
		t := &infos[i]
		out = append(out, ops.Tablet{Table: t.Table, Tablet: t.Tablet.String(), Start: ops.EscapeKey(t.Rows.Start), End: ops.EscapeKey(t.Rows.End), Bytes: t.Bytes, Runs: t.Runs, Files: t.Files})
	}
	return z.tablets(out)
}

// showDebugZip prints what a file has.
func showDebugZip(out io.Writer, name string) error {
	z, err := zip.OpenReader(name)
	if err != nil {
		return err
	}
	defer z.Close()
	if len(z.File) > maxZipFiles {
		return fmt.Errorf("it has %d files, more than trestle debug zip writes", len(z.File))
	}
	for _, f := range z.File {
		fmt.Fprintf(out, "%10s  %s\n", byteSize(int64(f.UncompressedSize64)), f.Name)
	}
	list := ops.ProcessList{}
	newest := time.Time{}
	for _, f := range z.File {
		if !strings.HasPrefix(f.Name, "processes/") {
			continue
		}
		var p ops.Process
		switch {
		case strings.HasSuffix(f.Name, "/process.json"):
			b, err := readZipFile(f)
			if err == nil {
				err = json.Unmarshal(b, &p)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
			// When it was asked is not known, so neither is what its clock was off.
			p.WaitSeconds = max(p.WaitSeconds, 1e9)
			if p.Now.After(newest) {
				newest = p.Now
			}
		default:
			continue
		}
		list.Processes = append(list.Processes, p)
		fmt.Fprintf(out, "\n%s: version %s (%s), %s, %d of %d files open, memory %s of %s\n", p.Name, p.Version, p.Revision, p.Now.UTC().Format(time.RFC3339),
			p.OpenFiles, p.MaxFiles, byteSize(p.MemoryBytes), byteSize(p.MemorySetting))
	}
	for _, d := range judgeProcesses(&list, newest, newest) {
		fmt.Fprintf(out, "%s  %s: %s: %s\n", d.Severity, d.Where, d.Check, d.Text)
	}
	for _, f := range z.File {
		if !strings.HasSuffix(f.Name, "errors.txt") && f.Name != "missing.txt" {
			continue
		}
		b, err := readZipFile(f)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		if len(b) > 0 {
			fmt.Fprintf(out, "\n%s\n%s\n", f.Name, strings.TrimSpace(string(b)))
		}
	}
	return nil
}

// readZipFile reads a file of a zip file, which has to be as long as trestle debug zip
// writes them at most.
func readZipFile(f *zip.File) ([]byte, error) {
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxZipFile+1))
	if err == nil && len(b) > maxZipFile {
		err = fmt.Errorf("it is longer than %s", byteSize(maxZipFile))
	}
	return b, err
}
