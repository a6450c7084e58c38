package hdfs

import (
	"strings"
	"testing"

	"github.com/trestledb/trestle/engine/fault"
)

func TestStartAfter(t *testing.T) {
	for _, tc := range []struct{ dir, after, want string }{
		{"", "", ""},
		{"a/", "", ""},
		{"a/", "b/c", ""},
		{"a/", "a/000000000000123", "00000000000012"},
		{"a/", "a/12/3", "1"},
		{"a/", "a/12-3", "1"},
		{"a/", "a/1.sst", ""},
		{"", "-", ""},
	} {
		if got := startAfter(tc.dir, tc.after); got != tc.want {
			t.Errorf("startAfter(%q, %q) is %q, want %q", tc.dir, tc.after, got, tc.want)
		}
	}
}

// The bytes are a real NameNode's.
const (
	realListing = `{"DirectoryListing":{"partialListing":{"FileStatuses":{"FileStatus":[{"accessTime":1795310344294,"blockSize":134217728,"childrenNum":0,"fileId":16387,"group":"supergroup","length":5,"modificationTime":1795310344890,"owner":"root","pathSuffix":"dst","permission":"644","replication":1,"storagePolicy":0,"type":"FILE"},{"accessTime":0,"blockSize":0,"childrenNum":1,"fileId":16388,"group":"supergroup","length":0,"modificationTime":1795310345978,"owner":"root","pathSuffix":"sub","permission":"755","replication":0,"storagePolicy":0,"type":"DIRECTORY"}]}},"remainingEntries":3}}`
	realFailure = `{"RemoteException":{"exception":"FileNotFoundException","javaClassName":"java.io.FileNotFoundException","message":"rename source /t/tmp1 is not found.\n\tat org"}}`
)

func TestParse(t *testing.T) {
	page, more, err := parseListing([]byte(realListing))
	if err != nil || !more || len(page) != 2 || page[0] != (fileStatus{"dst", 5, 1795310344890, "FILE"}) || !page[1].isDir() {
		t.Errorf("listing: %+v, %v, %v", page, more, err)
	}
	if err := failure(404, []byte(realFailure)); fault.KindOf(err) != fault.NotFound || !strings.HasSuffix(err.Error(), "is not found.") {
		t.Errorf("failure: %v", err)
	}
	for status, want := range map[int]fault.Kind{401: fault.PermissionDenied, 404: fault.FailedPrecondition, 500: fault.Unavailable} {
		if err := failure(status, []byte("<html>")); fault.KindOf(err) != want {
			t.Errorf("status %d: %v", status, err)
		}
	}
}

func FuzzListing(f *testing.F) {
	f.Add([]byte(realListing))
	f.Add([]byte(`{"DirectoryListing":{}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if page, more, err := parseListing(b); err != nil && (len(page) > 0 || more) {
			t.Errorf("a page with an error: %v", err)
		}
	})
}

func FuzzFailure(f *testing.F) {
	f.Add(403, []byte(realFailure))
	f.Fuzz(func(t *testing.T, status int, b []byte) {
		if err := failure(status, b); fault.KindOf(err) == 0 {
			t.Errorf("no kind: %v", err)
		}
	})
}
