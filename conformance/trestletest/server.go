package trestletest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc"

	"github.com/trestledb/trestle/cluster/client"
	"github.com/trestledb/trestle/cluster/standalone"
	"github.com/trestledb/trestle/cluster/tabletserver"
	"github.com/trestledb/trestle/cluster/views"
	"github.com/trestledb/trestle/engine/commitlog"
	"github.com/trestledb/trestle/engine/tempfs"
	"github.com/trestledb/trestle/gateway"
)

// The memory of a server: a test program may run many at once.
const (
	cacheBytes    = 32 << 20
	memtableBytes = 32 << 20
	segmentBytes  = 8 << 20
	// What counts how often rows are read takes a 32nd, from the start.
	rowCacheBytes = 1 << 20
)

// Server is a running server, without TLS or authentication.
type Server struct {
	// Addr is where it listens.
	Addr string

	store *standalone.Server
	front *gateway.Server
	dir   string
	own   net.Listener  // nil if the caller brought the listener
	done  chan struct{} // closed at the end of Serve
	close sync.Once
}

// NewServer starts a server on laddr, which is HOST:PORT, with port 0 for any
// that is free, or the path of a unix socket if it has a slash. The address
// that it came to is in Addr. Close the server to free what it holds.
func NewServer(laddr string, opt ...grpc.ServerOption) (*Server, error) {
	network := "tcp"
	if strings.Contains(laddr, "/") {
		network = "unix"
	}
	l, err := net.Listen(network, laddr)
	if err != nil {
		return nil, err
	}
	s, err := start(l, opt)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s.own = l
	return s, nil
}

// NewServerWithListener starts a server on l, which stays the caller's: Close
// does not close it.
func NewServerWithListener(l net.Listener, opt ...grpc.ServerOption) (*Server, error) {
	return start(lend(l), opt)
}

func start(l net.Listener, opt []grpc.ServerOption) (_ *Server, err error) {
	dir, err := os.MkdirTemp("", "trestletest-")
	if err != nil {
		return nil, fmt.Errorf("make a temporary data directory: %w", err)
	}
	s := &Server{Addr: l.Addr().String(), dir: dir, done: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	s.store, err = standalone.Open(context.Background(), standalone.Options{
		Dir: dir, FS: tempfs.New(vfs.Default), NoReserve: true, Logger: log,
		Log:          commitlog.Options{Durability: commitlog.Async, SegmentBytes: segmentBytes, Log: log},
		TabletServer: tabletserver.Options{CacheBytes: cacheBytes, RowCacheBytes: rowCacheBytes, MemtableBytes: memtableBytes},
		Views: func(c *client.Client) views.Options {
			return views.Options{Evaluators: gateway.ViewEvaluators(c, 16<<20, dir)}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("open the store: %w", err)
	}
	// A goroutine for each call, rather than hundreds that wait for one: the
	// runtime never frees what it knows of a goroutine, 400 bytes.
	s.front, err = gateway.New(s.store, gateway.Options{Emulator: true, Reflection: true, Log: log, ServerOptions: opt, Workers: -1})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the gateway: %w", err), s.store.Close(context.Background()))
	}
	go func() {
		defer close(s.done)
		_ = s.front.Serve(l) // what ends it is Close
	}()
	return s, nil
}

// Close ends the server, cutting off requests under way, and removes its data.
func (s *Server) Close() {
	s.close.Do(func() {
		// A context that has ended makes both skip what they would wait for: the
		// last answers and the last flush.
		ctx, cancel := context.WithDeadline(context.Background(), time.Now())
		defer cancel()
		_ = s.front.Stop(ctx)
		<-s.done
		if s.own != nil {
			_ = s.own.Close()
		}
		_ = s.store.Close(ctx)
		_ = os.RemoveAll(s.dir)
	})
}
