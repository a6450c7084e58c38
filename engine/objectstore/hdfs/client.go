package hdfs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trestledb/trestle/engine/fault"
)

const (
	// attempts is how often a request is made that fails for the moment.
	attempts   = 5
	retryFirst = 50 * time.Millisecond
	retryMost  = time.Second

	// requestTime is how long one attempt may take, beside a second for each MB.
	requestTime = 10 * time.Second
	// avoidTime is how long a DataNode that failed is not used: the NameNode takes
	// minutes to notice that it is gone.
	avoidTime = 30 * time.Second

	maxAnswer = 16 << 20 // of a NameNode, in bytes
	// wholeMost is how large a file is believed to be at most that is read whole;
	// only the time that this may take depends on it.
	wholeMost = 256 << 20
)

// A client speaks WebHDFS.
type client struct {
	http   *http.Client
	scheme string
	user   string
	nodes  []string // NameNodes, HOST:PORT
	active atomic.Uint32

	mu struct {
		sync.Mutex
		avoid map[string]time.Time // hosts of DataNodes, and until when
	}
}

func newClient(o Options) *client {
	transport := o.Transport
	if transport == nil {
		transport = &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 256,
			IdleConnTimeout:     20 * time.Second, // a NameNode closes what is idle for 30
		}
	}
	c := &client{
		// Where a NameNode points to is asked by hand.
		http:   &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		scheme: "https", user: o.User, nodes: o.NameNodes,
	}
	if o.Insecure {
		c.scheme = "http"
	}
	c.mu.avoid = map[string]time.Time{}
	return c
}

// An answer is what a NameNode says.
type answer struct {
	body     []byte
	location string // where it points to
}

// ask makes a request of a NameNode, and repeats it if it failed for the moment. The
// request must do no harm when it is carried out twice, or late.
func (c *client) ask(ctx context.Context, method, path string, q url.Values) (answer, error) {
	var a answer
	err := c.again(ctx, func() (err error) {
		a, err = c.once(ctx, method, path, q)
		return err
	})
	return a, err
}

// again calls do until it does not fail with fault.Unavailable, some times.
func (c *client) again(ctx context.Context, do func() error) error {
	delay := retryFirst
	for i := 1; ; i++ {
		err := do()
		if err == nil || i == attempts || !errors.Is(err, fault.Unavailable) {
			return err
		}
		select {
		case <-time.After(delay):
			delay = min(2*delay, retryMost)
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// once makes a request of the NameNode that is believed active.
func (c *client) once(ctx context.Context, method, path string, q url.Values) (answer, error) {
	active := c.active.Load()
	u := url.URL{Scheme: c.scheme, Host: c.nodes[int(active)%len(c.nodes)], Path: "/webhdfs/v1" + path}
	q = maps.Clone(q)
	q.Set("user.name", c.user)
	u.RawQuery = q.Encode()
	one, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	resp, err := c.send(one, ctx, method, u.String(), http.NoBody, 0)
	if err != nil {
		if errors.Is(err, fault.Unavailable) { // perhaps another one is active now
			c.active.CompareAndSwap(active, active+1)
		}
		return answer{}, err
	}
	defer resp.Body.Close()
	a := answer{location: resp.Header.Get("Location")}
	if a.body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer)); err != nil {
		return answer{}, c.lost(ctx, err)
	}
	return a, nil
}

// send makes a request and turns an answer that tells of a failure into an
// error. Its context is one, which ends before that of the caller.
func (c *client) send(one, caller context.Context, method, where string, body io.Reader, size int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(one, method, where, body)
	if err != nil {
		return nil, err
	}
	req.ContentLength = size
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.lost(caller, err)
	}
	if resp.StatusCode < http.StatusBadRequest {
		return resp, nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, c.lost(caller, err)
	}
	return nil, failure(resp.StatusCode, b)
}

// lost returns the error of a request whose answer did not come.
func (c *client) lost(caller context.Context, err error) error {
	if caller.Err() != nil {
		return caller.Err()
	}
	return fault.New(fault.Unavailable, "%v", err)
}

// kinds are those of HDFS's exceptions. All other failures that it tells are
// believed to pass: it has no exception of its own for most of them.
var kinds = map[string]fault.Kind{
	"FileNotFoundException":               fault.NotFound,
	"ParentNotDirectoryException":         fault.NotFound,
	"FileAlreadyExistsException":          fault.AlreadyExists,
	"AccessControlException":              fault.PermissionDenied,
	"AuthorizationException":              fault.PermissionDenied,
	"AuthenticationException":             fault.PermissionDenied,
	"SecurityException":                   fault.PermissionDenied,
	"InvalidToken":                        fault.PermissionDenied,
	"NSQuotaExceededException":            fault.Exhausted,
	"DSQuotaExceededException":            fault.Exhausted,
	"QuotaByStorageTypeExceededException": fault.Exhausted,
	"QuotaExceededException":              fault.Exhausted,
	"MaxDirectoryItemsExceededException":  fault.Exhausted,
	"PathComponentTooLongException":       fault.Invalid,
	"InvalidPathException":                fault.Invalid,
	"IllegalArgumentException":            fault.Invalid,
	"UnsupportedOperationException":       fault.FailedPrecondition,
}

// failure returns the error that an answer tells.
func failure(status int, body []byte) error {
	var told struct {
		RemoteException struct{ Exception, Message string }
	}
	if err := json.Unmarshal(body, &told); err != nil || told.RemoteException.Exception == "" {
		switch status {
		case http.StatusUnauthorized:
			return fault.New(fault.PermissionDenied, "HTTP status %d: does this HDFS ask for Kerberos?", status)
		case http.StatusNotFound:
			return fault.New(fault.FailedPrecondition, "HTTP status %d: is this the HTTP port of a NameNode, and WebHDFS on?", status)
		}
		return fault.New(fault.Unavailable, "HTTP status %d", status)
	}
	e := told.RemoteException
	kind := kinds[e.Exception]
	if kind == 0 {
		kind = fault.Unavailable
	}
	message, _, _ := strings.Cut(e.Message, "\n")
	return fault.New(kind, "%s: %s", e.Exception, message)
}

// locate asks where the bytes of a file are to be had or brought, and returns
// the address and the host.
func (c *client) locate(ctx context.Context, method, path string, q url.Values) (where, host string, err error) {
	avoided := c.avoided()
	if avoided != "" {
		q = maps.Clone(q)
		q.Set("excludedatanodes", avoided)
	}
	a, err := c.once(ctx, method, path, q)
	if err != nil {
		if avoided != "" && errors.Is(err, fault.Unavailable) {
			c.forgive() // perhaps there is no other
		}
		return "", "", err
	}
	u, err := url.Parse(a.location)
	if err != nil || u.Host == "" {
		return "", "", fault.New(fault.FailedPrecondition, "the NameNode does not say where the file's bytes are: is it one?")
	}
	return a.location, u.Hostname(), nil
}

// avoided returns the hosts of DataNodes that failed lately.
func (c *client) avoided() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var hosts []string
	for h, until := range c.mu.avoid {
		if time.Now().After(until) {
			delete(c.mu.avoid, h)
		} else {
			hosts = append(hosts, h)
		}
	}
	return strings.Join(hosts, ",")
}

func (c *client) avoid(host string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.avoid[host] = time.Now().Add(avoidTime)
}

func (c *client) forgive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.mu.avoid)
}

// brought returns err, and remembers the host of a DataNode that failed.
func (c *client) brought(host string, err error) error {
	if errors.Is(err, fault.Unavailable) {
		c.avoid(host)
	}
	return err
}

// timeFor returns how long a request that carries n bytes may take.
func timeFor(n int64) time.Duration { return requestTime + time.Duration(n)*time.Microsecond }

// read returns the n bytes at off of a file, in p if that is large enough. A
// negative n means all of it.
func (c *client) read(ctx context.Context, path string, off, n int64, p []byte) ([]byte, error) {
	q := url.Values{"op": {"OPEN"}}
	if n >= 0 {
		q.Set("offset", strconv.FormatInt(off, 10))
		q.Set("length", strconv.FormatInt(n, 10))
	}
	var out []byte
	err := c.again(ctx, func() error {
		where, host, err := c.locate(ctx, http.MethodGet, path, q)
		if err == nil {
			out, err = c.readFrom(ctx, where, n, p)
			err = c.brought(host, err)
		}
		return err
	})
	return out, err
}

func (c *client) readFrom(ctx context.Context, where string, n int64, p []byte) ([]byte, error) {
	most := n
	if n < 0 {
		most = wholeMost
	}
	one, cancel := context.WithTimeout(ctx, timeFor(most))
	defer cancel()
	resp, err := c.send(one, ctx, http.MethodGet, where, http.NoBody, 0)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	size := resp.ContentLength
	if size < 0 || n >= 0 && size != n {
		return nil, fault.New(fault.Unavailable, "the DataNode sends %d bytes, %d were asked for", size, n)
	}
	if int64(cap(p)) < size {
		p = make([]byte, size)
	}
	p = p[:size]
	if _, err := io.ReadFull(resp.Body, p); err != nil {
		return nil, c.lost(ctx, err)
	}
	return p, nil
}

// syncFlags are those of files whose blocks are on the DataNodes' disks when
// they are complete.
const syncFlags = "CREATE,SYNC_BLOCK"

// place asks where to bring the bytes of a new file.
func (c *client) place(ctx context.Context, path string) (where, host string, err error) {
	where, host, err = c.locate(ctx, http.MethodPut, path,
		url.Values{"op": {"CREATE"}, "overwrite": {"false"}, "createparent": {"false"}, "createflag": {syncFlags}, "permission": {"600"}})
	if err == nil && !strings.Contains(where, "SYNC_BLOCK") {
		err = fault.New(fault.FailedPrecondition, "this HDFS is too old: it cannot be told to sync a file to its DataNodes' disks (createflag=SYNC_BLOCK)")
	}
	return where, host, err
}

// write brings the bytes of a new file. A negative size means until body ends.
// It may be called once for a path.
func (c *client) write(one, caller context.Context, where, host string, body io.Reader, size int64) error {
	resp, err := c.send(one, caller, http.MethodPut, where, body, size)
	if errors.Is(err, fault.AlreadyExists) {
		// No other process has the name: the request was carried out twice.
		return fault.New(fault.Unavailable, "%v", err)
	}
	if err != nil {
		return c.brought(host, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusCreated {
		return fault.New(fault.Unavailable, "HTTP status %d where 201 was expected", resp.StatusCode)
	}
	return nil
}

// A fileStatus describes a file or directory.
type fileStatus struct {
	PathSuffix       string
	Length           int64
	ModificationTime int64 // in milliseconds since 1970
	Type             string
}

func (f *fileStatus) isDir() bool { return f.Type == "DIRECTORY" }

// status returns what there is, or fault.NotFound.
func (c *client) status(ctx context.Context, path string) (fileStatus, error) {
	a, err := c.ask(ctx, http.MethodGet, path, url.Values{"op": {"GETFILESTATUS"}})
	if err != nil {
		return fileStatus{}, err
	}
	var told struct{ FileStatus *fileStatus }
	if err := json.Unmarshal(a.body, &told); err != nil || told.FileStatus == nil {
		return fileStatus{}, fault.New(fault.Unavailable, "the NameNode's answer is no status: %v", err)
	}
	return *told.FileStatus, nil
}

// list calls visit for what is in a directory and larger than after, in the
// order of names. It does nothing if there is no such directory.
func (c *client) list(ctx context.Context, path, after string, visit func(fileStatus)) error {
	for {
		q := url.Values{"op": {"LISTSTATUS_BATCH"}}
		if after != "" {
			q.Set("startAfter", after)
		}
		a, err := c.ask(ctx, http.MethodGet, path, q)
		if errors.Is(err, fault.NotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		page, more, err := parseListing(a.body)
		if err != nil {
			return err
		}
		for _, f := range page {
			if f.PathSuffix == "" {
				return nil // path is a file
			}
			visit(f)
			after = f.PathSuffix
		}
		if !more || len(page) == 0 {
			return nil
		}
	}
}

// parseListing returns a page of a listing, and whether there are more.
func parseListing(b []byte) (page []fileStatus, more bool, err error) {
	var told struct {
		DirectoryListing *struct {
			PartialListing struct {
				FileStatuses struct{ FileStatus []fileStatus }
			}
			RemainingEntries int
		}
	}
	if err := json.Unmarshal(b, &told); err != nil || told.DirectoryListing == nil {
		return nil, false, fault.New(fault.Unavailable, "the NameNode's answer is no listing: %v", err)
	}
	return told.DirectoryListing.PartialListing.FileStatuses.FileStatus, told.DirectoryListing.RemainingEntries > 0, nil
}

// change makes a request that is answered with a truth value.
func (c *client) change(ctx context.Context, method, path string, q url.Values) (bool, error) {
	a, err := c.ask(ctx, method, path, q)
	if err != nil {
		return false, err
	}
	var told struct{ Boolean *bool }
	if err := json.Unmarshal(a.body, &told); err != nil || told.Boolean == nil {
		return false, fault.New(fault.Unavailable, "the NameNode answers %.100q", a.body)
	}
	return *told.Boolean, nil
}

// mkdir makes a directory and those above it; none may be a file.
func (c *client) mkdir(ctx context.Context, path string) error {
	ok, err := c.change(ctx, http.MethodPut, path, url.Values{"op": {"MKDIRS"}, "permission": {"700"}})
	if err == nil && !ok {
		err = fmt.Errorf("the NameNode does not make the directory %s", path)
	}
	return err
}

// remove deletes a file or a whole directory, and tells whether there was one.
func (c *client) remove(ctx context.Context, path string, recursive bool) (bool, error) {
	return c.change(ctx, http.MethodDelete, path, url.Values{"op": {"DELETE"}, "recursive": {strconv.FormatBool(recursive)}})
}

// rename gives a file a name that is not taken. It is fault.AlreadyExists if the name is
// taken, and fault.NotFound if there is no such file or no directory for the name.
func (c *client) rename(ctx context.Context, path, to string) error {
	a, err := c.ask(ctx, http.MethodPut, path, url.Values{"op": {"RENAME"}, "destination": {to}, "renameoptions": {"NONE"}})
	if err == nil && len(a.body) > 0 {
		// What answers to a rename without options, whose outcomes are not told apart.
		return fault.New(fault.FailedPrecondition, "the server does not understand the option of a rename: name a NameNode, not an HttpFS")
	}
	return err
}

// touch sets a modification time, which is on the NameNode's disk when it
// returns, with all that was changed before.
func (c *client) touch(ctx context.Context, path string) error {
	_, err := c.ask(ctx, http.MethodPut, path, url.Values{"op": {"SETTIMES"}, "accesstime": {"-1"},
		"modificationtime": {strconv.FormatInt(time.Now().UnixMilli(), 10)}})
	return err
}
