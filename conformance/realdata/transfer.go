package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/trestledb/trestle/conformance/cluster"
)

// transfer makes the stopped server's directory a cluster, and that another
// directory, which is served from then on. Nothing may differ after either, and `trestle check` has to
// find no damage. The times of copies are printed beside.
func (b *bench) transfer(ctx context.Context, store string, want uint64) error {
	if err := b.stop(); err != nil {
		return err
	}
	b.server = nil
	from := b.dir
	size, err := directorySize(filepath.Join(from, "sst"))
	if err != nil {
		return err
	}
	tables, err := copyDirectory(ctx, filepath.Join(from, "sst"), from+"-copy")
	if err != nil {
		return err
	}
	all, err := copyDirectory(ctx, from, from+"-copy")
	if err != nil {
		return err
	}
	fmt.Printf("  %.0f MB of SSTables; cp -r and sync: %.2f s, of the directory %.2f s\n", float64(size)/1e6, tables.Seconds(), all.Seconds())
	timed := func(c *cluster.Cluster, verb, dir string) error {
		start := time.Now()
		out, err := c.Run(ctx, "cluster", verb, "--data-dir="+dir, "--store="+c.StoreURL())
		if err != nil {
			return err
		}
		took := time.Since(start)
		fmt.Printf("  %s: %.2f s, %.2f of the rate of cp of SSTables, %.2f of the directory\n    %s\n", verb, took.Seconds(),
			tables.Seconds()/took.Seconds(), all.Seconds()/took.Seconds(), lastLine([]byte(out)))
		return nil
	}
	binary, err := filepath.Abs(b.binary)
	if err != nil {
		return err
	}
	if err := os.Mkdir(from+"-cluster", 0o700); err != nil {
		return err
	}
	c, err := cluster.Start(ctx, cluster.Options{Trestle: binary, Dir: from + "-cluster", Servers: 2, Masters: 1, Store: store,
		Fill: func(c *cluster.Cluster) error { return timed(c, "adopt", from) }})
	if c != nil {
		defer c.Close()
	}
	if err != nil {
		return err
	}
	if err := b.dial(ctx, c.API(c.Gateway)); err != nil {
		return err
	}
	if err := b.verify(ctx, want); err != nil {
		return fmt.Errorf("the cluster: %w", err)
	}
	if err := b.queries(ctx); err != nil {
		return fmt.Errorf("the cluster: %w", err)
	}
	b.http = c.HTTP(c.Gateway)
	if err := b.checkViews(ctx); err != nil {
		return fmt.Errorf("the cluster: %w", err)
	}
	b.client.Close()
	b.admin.Close()
	if err := c.StopServing(time.Minute); err != nil {
		return err
	}
	b.dir = from + "-released"
	if err := timed(c, "release", b.dir); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, binary, "check", b.dir).CombinedOutput()
	fmt.Printf("  %s\n", lastLine(out))
	if err != nil {
		return fmt.Errorf("trestle check: %w: %s", err, out)
	}
	return b.start(ctx)
}

// dial connects to a server.
func (b *bench) dial(ctx context.Context, addr string) error {
	opts := []option.ClientOption{option.WithEndpoint(addr), option.WithoutAuthentication(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())), option.WithGRPCConnectionPool(4)}
	if err := os.Setenv("BIGTABLE_EMULATOR_HOST", addr); err != nil {
		return err
	}
	var err error
	if b.client, err = bigtable.NewClient(ctx, project, instance, opts...); err != nil {
		return err
	}
	if b.admin, err = bigtable.NewAdminClient(ctx, project, instance, opts...); err != nil {
		return err
	}
	b.table = b.client.Open("ucd")
	return nil
}

// copyDirectory copies a directory as an operator would, makes the copy durable,
// removes it, and returns how long the first two took.
func copyDirectory(ctx context.Context, from, to string) (time.Duration, error) {
	start := time.Now()
	out, err := exec.CommandContext(ctx, "sh", "-c", `cp -r "$0" "$1" && find "$1" -exec sync {} +`, from, to).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("cp: %w: %s", err, out)
	}
	return time.Since(start), os.RemoveAll(to)
}

func directorySize(dir string) (size int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			size += info.Size()
		}
		return err
	})
	return size, err
}
