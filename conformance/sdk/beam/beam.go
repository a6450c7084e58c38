package beam

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

//go:embed Changes.java Endpoint.java
var sources embed.FS

// A Pipeline is Changes.java, compiled.
type Pipeline struct {
	// Addr is the server's address, HOST:PORT. It is asked in plaintext and without login.
	Addr string
	// Project, Instance and Table say what is read, from Start on.
	Project, Instance, Table string
	Start                    time.Time
	classPath                string
}

// Compile compiles the pipeline into a directory. jars is the directory of Beam's. The caller
// fills the exported fields.
func Compile(ctx context.Context, jars, dir string) (*Pipeline, error) {
	if err := os.CopyFS(dir, sources); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.java"))
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "javac", append([]string{"-cp", jars + "/*", "-d", dir}, files...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", cmd, err, out)
	}
	return &Pipeline{classPath: strings.Join([]string{dir, jars + "/*"}, string(filepath.ListSeparator))}, nil
}

// Run starts the pipeline, which appends a line to a file for each change, and ends only if it
// fails. One that was killed is continued where the connector has noted it to be.
func (p *Pipeline) Run(file string) (*Process, error) {
	r := &Process{ended: make(chan struct{})}
	r.cmd = exec.Command("java", "-Xmx700m", "-XX:TieredStopAtLevel=1", "-cp", p.classPath, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "Changes",
		p.Addr, p.Project, p.Instance, p.Table, p.Table+"-changes", fmt.Sprint(p.Start.UnixMilli()), file)
	r.cmd.Stdout, r.cmd.Stderr = &r.log, &r.log
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = r.cmd.Wait() // its state says how it has ended
		close(r.ended)
	}()
	return r, nil
}

// A Process is a pipeline that runs.
type Process struct {
	cmd   *exec.Cmd
	log   bytes.Buffer
	ended chan struct{}
}

// Ended is closed when the pipeline has ended.
func (r *Process) Ended() <-chan struct{} { return r.ended }

// Err says how the pipeline has ended, with all that it printed.
func (r *Process) Err() error {
	<-r.ended
	return fmt.Errorf("the pipeline ended: %v\n%s", r.cmd.ProcessState, r.log.String())
}

// Kill kills the pipeline and waits until it has ended.
func (r *Process) Kill() {
	_ = r.cmd.Process.Kill()
	<-r.ended
}
