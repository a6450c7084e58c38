package sdk

import (
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/trestledb/trestle/conformance/model"
	"github.com/trestledb/trestle/conformance/target"
	"github.com/trestledb/trestle/gateway"
	"github.com/trestledb/trestle/gateway/rest"
)

// gcloudBinary returns the path of gcloud, or skips the test.
func gcloudBinary(t *testing.T) string {
	t.Helper()
	if os.Getenv("CONFORMANCE_SDK") == "" {
		t.Skip("set CONFORMANCE_SDK=1 to run gcloud; `make conformance` does")
	}
	path, err := exec.LookPath("gcloud")
	if err != nil {
		t.Skip("gcloud is not installed")
	}
	return path
}

// restURL returns the URL of the REST API of a server of its own.
func restURL(t *testing.T) string {
	t.Helper()
	if bin := os.Getenv(target.BinaryEnv); bin != "" {
		s, err := target.Start(t.Context(), target.Process{Binary: bin, Dir: t.TempDir(), HTTP: "127.0.0.1:0", Cluster: target.OnCluster()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Stop(time.Minute); err != nil {
				t.Errorf("stop the server: %v\n%s", err, s.Log())
			}
		})
		return s.REST
	}
	g, err := gateway.New(model.New(model.Options{}), gateway.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	h, err := rest.New(g, rest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		s.Close()
		_ = g.Stop(t.Context())
	})
	return s.URL + "/v2/"
}

func descriptors(t *testing.T) []byte {
	t.Helper()
	f := protodesc.ToFileDescriptorProto(durationpb.File_google_protobuf_duration_proto)
	f.Name, f.Package = proto.String("example.proto"), proto.String("example")
	b, err := proto.Marshal(&descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{f}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGCloud(t *testing.T) {
	g := GCloud{Binary: gcloudBinary(t), URL: restURL(t), Dir: t.TempDir(), Each: tell(t)}
	results, err := g.Run(t.Context(), descriptors(t))
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "gcloud.txt", results)
}
