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
	type certificate struct {
		Name  string    `json:"name"`
		Made  bool      `json:"made"` // else it was there
		Until time.Time `json:"until"`
		Cert  string    `json:"cert"`
		Key   string    `json:"key"`
	}
	var all []certificate
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
		c := certificate{name, made, until.UTC(), absolute(args[0], name+".pem"), absolute(args[0], name+"-key.pem")}
		if all = append(all, c); !o.json {
			fmt.Fprintf(o.p.stdout, "%s: %s, good until %s; --cluster-ca %s --cluster-cert %s --cluster-key %s\n", name, what, c.Until.Format(time.DateOnly), auto.CA(), c.Cert, c.Key)
		}
	}
	if o.json {
		return o.print(map[string]any{"ca": auto.CA(), "certificates": all})
	}
	fmt.Fprintf(o.p.stdout, "Give each process its own two files and %s; keep %s away from all of them.\n", auto.CA(), absolute(args[0], "ca-key.pem"))
	return nil
}
