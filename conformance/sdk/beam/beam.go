package beam

import (
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

// Command returns the command that appends a line to a file for each change.
func (p *Pipeline) Command(file string) *exec.Cmd {
	return exec.Command("java", "-Xmx700m", "-XX:TieredStopAtLevel=1", "-cp", p.classPath, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "Changes",
		p.Addr, p.Project, p.Instance, p.Table, p.Table+"-changes", fmt.Sprint(p.Start.UnixMilli()), file)
}
