package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/trestledb/trestle/cmd/trestle/internal/settings"
	"github.com/trestledb/trestle/gateway/auth/servertls"
)

// certs makes certificates for cluster-cert, of an authority for nothing else. It
// needs no cluster.
func (o *operator) certs(_ context.Context, args []string) error {
	auto := servertls.Auto{Dir: absolute(args[0])}
	for _, name := range args[1:] {
		if name == "ca" || strings.HasSuffix(name, "-key") || !settings.ServerName.MatchString(name) {
			return fmt.Errorf("%q cannot be the name of a process", name)
		}
		made, until, err := auto.Peer(name)
		if err != nil {
			return err
		}
		what := "is there"
		if made {
			what = "made"
		}
		fmt.Fprintf(o.p.stdout, "%s: %s, good until %s; --cluster-ca %s --cluster-cert %s --cluster-key %s\n", name, what, until.UTC().Format(time.DateOnly),
			auto.CA(), absolute(args[0], name+".pem"), absolute(args[0], name+"-key.pem"))
	}
	fmt.Fprintf(o.p.stdout, "Give each process its own two files and %s; keep %s away from all of them.\n", auto.CA(), absolute(args[0], "ca-key.pem"))
	return nil
}
