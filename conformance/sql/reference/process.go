package reference

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A Result is what a query answered, in the form that testdata/src/Reference.java
// describes.
type Result struct {
	// Error is the text of the refusal; Columns and Rows are empty then.
	Error   string
	Columns [][2]string // name and type; names of a struct's fields are left out
	Rows    [][]any
}

// A Process evaluates queries. One goroutine may use it.
type Process struct {
	jars string
	java string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
}

// Start runs the program with the jars in a directory, which the target
// conformance-sql of the Makefile fetches. It compiles the program into that
// directory if need be.
func Start(jars, source string) (*Process, error) {
	path, err := classPath(jars)
	if err != nil {
		return nil, err
	}
	classes := filepath.Join(jars, "classes")
	if out, err := exec.Command("javac", "-cp", path, "-d", classes, source).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile %s: %w\n%s", source, err, out)
	}
	p := &Process{jars: jars, java: classes + string(os.PathListSeparator) + path}
	return p, p.start()
}

// classPath names the jars, protobuf-java first: others bring older ones along.
func classPath(dir string) (string, error) {
	all, err := filepath.Glob(filepath.Join(dir, "*.jar"))
	if err != nil {
		return "", err
	}
	var first, rest []string
	for _, jar := range all {
		if strings.HasPrefix(filepath.Base(jar), "protobuf-java-4") {
			first = append(first, jar)
		} else {
			rest = append(rest, jar)
		}
	}
	if len(first) != 1 || len(rest) == 0 {
		return "", fmt.Errorf("%s has not the jars of testdata/pom.xml", dir)
	}
	return strings.Join(append(first, rest...), string(os.PathListSeparator)), nil
}

func (p *Process) start() (err error) {
	p.cmd = exec.Command("java", "-Xmx1g", "-cp", p.java, "Reference",
		"FEATURE_ANALYTIC_FUNCTIONS", "FEATURE_GROUP_BY_ROLLUP", "FEATURE_GROUPING_SETS", "FEATURE_MULTI_GROUPING_SETS")
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.out = bufio.NewReaderSize(out, 1<<20)
	return p.cmd.Start()
}

// errDied is what Query returns of a query that ended the program: some do, by a
// failed assertion in it.
var errDied = errors.New("the reference implementation died of the query")

// Query evaluates a query.
func (p *Process) Query(sql string) (*Result, error) {
	line, err := json.Marshal(sql)
	if err != nil {
		return nil, err
	}
	_, err = p.in.Write(append(line, '\n'))
	var answer []byte
	if err == nil {
		answer, err = p.out.ReadBytes('\n')
	}
	if err != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait() // it was killed, or had died
		return nil, errors.Join(errDied, p.start())
	}
	r := new(Result)
	if err := json.Unmarshal(answer, r); err != nil {
		return nil, fmt.Errorf("the reference implementation answered %.200q: %w", answer, err)
	}
	return r, nil
}

// Close ends the program.
func (p *Process) Close() error {
	_ = p.in.Close() // ends its loop
	return p.cmd.Wait()
}
