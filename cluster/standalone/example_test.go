package standalone_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"

	"cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/gateway"
)

// A program embeds a store on a data directory and serves it with a gateway. What
// the first life of it wrote, the second reads.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "store-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	serve(dir, func(ctx context.Context, opts ...option.ClientOption) error {
		admin, err := bigtable.NewAdminClient(ctx, "project", "instance", opts...)
		if err != nil {
			return err
		}
		return admin.CreateTable(ctx, "greetings")
	})
	serve(dir, func(ctx context.Context, opts ...option.ClientOption) error {
		admin, err := bigtable.NewAdminClient(ctx, "project", "instance", opts...)
		if err != nil {
			return err
		}
		tables, err := admin.Tables(ctx)
		fmt.Println(tables)
		return err
	})
	// Output: [greetings]
}

// serve serves the directory while use runs.
func serve(dir string, use func(context.Context, ...option.ClientOption) error) {
	ctx := context.Background()
	store, err := standalone.Open(ctx, standalone.Options{Dir: dir})
	if err != nil {
		log.Fatal(err)
	}
	front, err := gateway.New(store, gateway.Options{Emulator: true}) // any project and instance
	if err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- front.Serve(l) }()

	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	if err := use(ctx, option.WithGRPCConn(conn)); err != nil {
		log.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		log.Fatal(err)
	}

	// The gateway first: it waits for the calls under way, which need the store.
	if err := front.Stop(ctx); err != nil {
		log.Fatal(err)
	}
	if err := <-served; err != nil {
		log.Fatal(err)
	}
	if err := store.Close(ctx); err != nil {
		log.Fatal(err)
	}
}
