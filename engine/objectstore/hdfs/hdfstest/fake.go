package hdfstest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/trestledb/trestle/engine/objectstore/hdfs"
)

// pageSize is how many entries a listing has at most.
const pageSize = 7

// A file is one, or a directory.
type file struct {
	dir      bool
	open     bool
	data     []byte
	modified time.Time
}

// fake is a NameNode and a DataNode.
type fake struct {
	url string

	mu    sync.Mutex
	files map[string]*file
}

// Fake starts an HDFS in this process, which keeps files in memory. change, if
// not nil, comes between.
func Fake(t testing.TB, change func(http.Handler) http.Handler) hdfs.Options {
	t.Helper()
	f := &fake{files: map[string]*file{"/": {dir: true}}}
	var h http.Handler = f
	if change != nil {
		h = change(h)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	f.url = srv.URL
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	t.Cleanup(transport.CloseIdleConnections)
	return hdfs.Options{NameNodes: []string{strings.TrimPrefix(srv.URL, "http://")}, Insecure: true, Dir: "/store", Transport: transport}
}

// An exception is a failure as HDFS tells it.
type exception struct {
	status        int
	name, message string
}

func (e *exception) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.status)
	_ = json.NewEncoder(w).Encode(map[string]any{"RemoteException": map[string]string{
		"exception": e.name, "javaClassName": "java.io." + e.name, "message": e.message}})
}

func notFound(what string) *exception {
	return &exception{http.StatusNotFound, "FileNotFoundException", what + " does not exist."}
}

func exists(what string) *exception {
	return &exception{http.StatusForbidden, "FileAlreadyExistsException", what + " exists"}
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, ok := strings.CutPrefix(r.URL.Path, "/webhdfs/v1")
	q := r.URL.Query()
	if !ok || q.Get("user.name") == "" {
		http.Error(w, "no WebHDFS here", http.StatusNotFound)
		return
	}
	var e *exception
	switch op := r.Method + " " + q.Get("op"); {
	case q.Has("datanode"):
		e = f.dataNode(w, r, name)
	case op == "PUT CREATE", op == "GET OPEN":
		if op == "GET OPEN" && f.get(name) == nil {
			e = notFound(name)
			break
		}
		q.Set("datanode", "true")
		w.Header().Set("Location", f.url+r.URL.Path+"?"+q.Encode())
		w.WriteHeader(http.StatusTemporaryRedirect)
	default:
		var answer any
		if answer, e = f.nameNode(op, name, q.Get); e == nil && answer != nil {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(answer)
		}
	}
	if e != nil {
		e.write(w)
	}
}

func (f *fake) get(name string) *file {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.files[name]
}

func (f *fake) dataNode(w http.ResponseWriter, r *http.Request, name string) *exception {
	q := r.URL.Query()
	if r.Method == http.MethodPut {
		if e := f.create(name, q.Get("createparent") == "false"); e != nil {
			return e
		}
		data, err := io.ReadAll(r.Body)
		f.mu.Lock()
		defer f.mu.Unlock()
		if n := f.files[name]; n != nil {
			n.data, n.open, n.modified = data, false, time.Now()
		}
		if err != nil { // the file is closed all the same, and holds what came
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusCreated)
		return nil
	}
	n := f.get(name)
	if n == nil {
		return notFound(name)
	}
	data := n.data
	if off, err := strconv.Atoi(q.Get("offset")); err == nil {
		if off >= len(data) && len(data) > 0 {
			return &exception{http.StatusForbidden, "IOException", "Offset out of the range"}
		}
		data = data[off:]
	}
	if length, err := strconv.Atoi(q.Get("length")); err == nil {
		data = data[:min(length, len(data))]
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	_, _ = w.Write(data)
	return nil
}

func (f *fake) create(name string, needParent bool) *exception {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch parent := path.Dir(name); {
	case f.files[name] != nil:
		return exists(name)
	case f.files[parent] == nil && needParent:
		return notFound(parent)
	default:
		if e := f.mkdirLocked(parent); e != nil {
			return e
		}
		f.files[name] = &file{open: true, modified: time.Now()}
		return nil
	}
}

func (f *fake) mkdirLocked(name string) *exception {
	if n := f.files[name]; n != nil {
		if !n.dir {
			return &exception{http.StatusForbidden, "ParentNotDirectoryException", name + " is a file"}
		}
		return nil
	}
	if e := f.mkdirLocked(path.Dir(name)); e != nil {
		return e
	}
	f.files[name] = &file{dir: true, modified: time.Now()}
	return nil
}

func (f *fake) nameNode(op, name string, param func(string) string) (any, *exception) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.files[name]
	switch op {
	case "PUT MKDIRS":
		return map[string]bool{"boolean": true}, f.mkdirLocked(name)
	case "PUT RENAME":
		to := param("destination")
		switch parent := f.files[path.Dir(to)]; {
		case n == nil:
			return nil, notFound("rename source " + name)
		case f.files[to] != nil:
			return nil, exists("rename destination " + to)
		case parent == nil:
			return nil, notFound("rename destination parent of " + to)
		}
		delete(f.files, name)
		f.files[to] = n
		return nil, nil
	case "PUT SETTIMES":
		if n == nil {
			return nil, notFound(name)
		}
		return nil, nil
	case "DELETE DELETE":
		for p := range f.files {
			if strings.HasPrefix(p, name+"/") {
				if param("recursive") != "true" {
					return nil, &exception{http.StatusForbidden, "PathIsNotEmptyDirectoryException", name + " is not empty"}
				}
				delete(f.files, p)
			}
		}
		delete(f.files, name)
		return map[string]bool{"boolean": n != nil}, nil
	case "GET GETFILESTATUS":
		if n == nil {
			return nil, notFound(name)
		}
		return map[string]any{"FileStatus": status("", n)}, nil
	case "GET LISTSTATUS_BATCH":
		if n == nil {
			return nil, notFound(name)
		}
		return f.listLocked(name, n, param("startAfter")), nil
	}
	return nil, &exception{http.StatusBadRequest, "UnsupportedOperationException", fmt.Sprintf("%s is not supported", op)}
}

func (f *fake) listLocked(name string, n *file, after string) any {
	page, remaining := []any{}, 0
	if !n.dir {
		page = append(page, status("", n))
	} else {
		var names []string
		for p := range f.files {
			if suffix := path.Base(p); path.Dir(p) == name && suffix > after {
				names = append(names, suffix)
			}
		}
		slices.Sort(names)
		for i, suffix := range names {
			if i == pageSize {
				remaining = len(names) - i
				break
			}
			page = append(page, status(suffix, f.files[path.Join(name, suffix)]))
		}
	}
	return map[string]any{"DirectoryListing": map[string]any{
		"partialListing":   map[string]any{"FileStatuses": map[string]any{"FileStatus": page}},
		"remainingEntries": remaining,
	}}
}

func status(suffix string, n *file) any {
	kind := "FILE"
	if n.dir {
		kind = "DIRECTORY"
	}
	return map[string]any{"pathSuffix": suffix, "length": len(n.data), "modificationTime": n.modified.UnixMilli(), "type": kind}
}
