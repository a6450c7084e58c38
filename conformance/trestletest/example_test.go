package trestletest_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/trestledb/trestle/conformance/trestletest"
)

// A test starts a server, makes a table and uses it with the official client.
func ExampleNewServer() {
	ctx := context.Background()
	srv, err := trestletest.NewServer("localhost:0")
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Close()

	conn, err := grpc.NewClient(srv.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	admin, err := bigtable.NewAdminClient(ctx, "project", "instance", option.WithGRPCConn(conn))
	if err != nil {
		log.Fatal(err)
	}
	if err := admin.CreateTable(ctx, "greetings"); err != nil {
		log.Fatal(err)
	}
	if err := admin.CreateColumnFamily(ctx, "greetings", "f"); err != nil {
		log.Fatal(err)
	}

	// Without the NoopMetricsProvider the client would look for credentials of
	// Google Cloud, to send metrics there.
	client, err := bigtable.NewClientWithConfig(ctx, "project", "instance",
		bigtable.ClientConfig{MetricsProvider: bigtable.NoopMetricsProvider{}}, option.WithGRPCConn(conn))
	if err != nil {
		log.Fatal(err)
	}
	table := client.Open("greetings")
	m := bigtable.NewMutation()
	m.Set("f", "text", bigtable.ServerTime, []byte("hello"))
	if err := table.Apply(ctx, "row-1", m); err != nil {
		log.Fatal(err)
	}
	row, err := table.ReadRow(ctx, "row-1")
	if err != nil {
		log.Fatal(err)
	}
	cell := row["f"][0]
	fmt.Printf("%s %s: %s\n", cell.Row, cell.Column, cell.Value)
	// Output: row-1 f:text: hello
}

// A listener in memory needs no port.
func ExampleNewServerWithListener() {
	ctx := context.Background()
	l := bufconn.Listen(1 << 20)
	defer l.Close()
	srv, err := trestletest.NewServerWithListener(l)
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Close()

	conn, err := grpc.NewClient("passthrough:memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	admin, err := bigtable.NewAdminClient(ctx, "project", "instance", option.WithGRPCConn(conn))
	if err != nil {
		log.Fatal(err)
	}
	if err := admin.CreateTable(ctx, "greetings"); err != nil {
		log.Fatal(err)
	}
	tables, err := admin.Tables(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(tables)
	// Output: [greetings]
}
