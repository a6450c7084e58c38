// Package trestletest runs a Trestle server inside of a test.
//
// It has the API of cloud.google.com/go/bigtable/bttest, so that a program's
// tests go from Google's emulator to Trestle by changing one import:
//
//	srv, err := trestletest.NewServer("localhost:0")
//	...
//	conn, err := grpc.NewClient(srv.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
//	...
//	client, err := bigtable.NewClient(ctx, proj, instance, option.WithGRPCConn(conn))
//
// What runs is the real gateway over the real engine, on a temporary directory
// that Close removes. As with bttest, any project and instance may be named.
package trestletest
