package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/bigtable"
)

// TestClusterMetadata: METADATA grows until it is split, while rows are written
// and the server that has it is killed; everything is found, also by a new
// process, also after everybody was killed; and its tablets are merged again when
// they may be larger.
func TestClusterMetadata(t *testing.T) {
	if testing.Short() {
		t.Skip("starts six processes")
	}
	t.Setenv(envMetadataSplit, fmt.Sprint(256<<10))
	c := startCluster(t, 3, mortal)
	metadata := func() []clusterTablet {
		for _, x := range c.status().Tables {
			if x.Table == "METADATA" {
				return x.Tablets
			}
		}
		return nil
	}
	var victim string
	eventually(t, func() string {
		m := metadata()
		if len(m) != 1 || m[0].State != "open" {
			return fmt.Sprintf("METADATA is not served: %v", m)
		}
		victim = m[0].Server
		return ""
	})
	near := "server-1" // who is asked
	if victim == near {
		near = "server-2"
	}
	w := startWorkload(t, c.table(c.addrs[near]))
	w.progress()
	// Long keys, and not to be compressed: they are most of a METADATA row.
	const wide = 200
	rng := rand.NewChaCha8([32]byte{})
	var splits []string
	for i := range wide {
		random := make([]byte, 800)
		_, _ = rng.Read(random)
		splits = append(splits, fmt.Sprintf("k%04d%s", i, random))
	}
	admin, client := clients(t, c.addrs[near])
	err := admin.CreateTableFromConf(t.Context(), &bigtable.TableConf{TableID: "wide", SplitKeys: splits, Families: map[string]bigtable.GCPolicy{"f": bigtable.NoGcPolicy()}})
	if err != nil {
		t.Fatal(err)
	}
	c.servers[victim].signal(os.Kill) // while METADATA is being split, or is about to be
	c.servers[victim].exit()
	row := func(i int) string { return fmt.Sprintf("k%04d", i) } // of the tablet before the split of that name
	for i := 0; i < wide; i += 4 {
		if err := writeWithin(t, client.Open("wide"), row(i), "v", time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	c.launch(victim)
	c.ready(victim)
	settled := func(enough func(n int) bool) {
		t.Helper()
		eventually(t, func() string {
			open := map[string]int{}
			for _, x := range c.status().Tables {
				for _, y := range x.Tablets {
					if y.State != "open" {
						return fmt.Sprintf("tablet %s of %s is %s", y.Tablet, x.Table, y.State)
					}
				}
				open[x.Table] = len(x.Tablets)
			}
			if n := open["METADATA"]; !enough(n) || len(open) != 3 || open["projects/project/instances/instance/tables/wide"] != wide+1 {
				return fmt.Sprintf("tablets: %v", open)
			}
			return ""
		})
	}
	found := func(client *bigtable.Client) {
		t.Helper()
		n := 0
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := client.Open("wide").ReadRows(ctx, bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
			if r.Key() != row(4*n) {
				t.Errorf("row %s follows %d others", r.Key(), n)
			}
			n++
			return true
		})
		if err != nil || n != wide/4 {
			t.Fatalf("%d rows, %v", n, err)
		}
	}
	settled(func(n int) bool { return n >= 2 })
	t.Logf("METADATA has %d tablets", len(metadata()))
	w.progress()
	_, cold := clients(t, c.addrs[victim]) // which has read nothing of METADATA yet
	found(cold)
	w.progress()
	w.end()
	if n := w.failed.Load(); n > 0 {
		t.Errorf("%d calls failed, the first: %v", n, w.first)
	}
	if out, code := c.check("--store=" + c.store); code != 0 {
		t.Errorf("check: exit code %d\n%s", code, out)
	}

	t.Setenv(envMetadataSplit, fmt.Sprint(64<<20))
	t.Setenv(envMerge, "1s")
	c.kill()
	c.startMaster("master-1")
	for i := range 3 {
		c.launch(fmt.Sprintf("server-%d", i+1))
	}
	for i := range 3 {
		c.ready(fmt.Sprintf("server-%d", i+1))
	}
	_, client = clients(t, c.addrs["server-3"])
	found(client)
	eventually(t, func() string { // tables are merged too
		if n := len(metadata()); n != 1 {
			return fmt.Sprintf("METADATA has %d tablets", n)
		}
		return ""
	})
	found(client)
	// The tablets of a deleted table are given up, and nobody misses them.
	admin, _ = clients(t, c.addrs["server-3"])
	if err := admin.DeleteTable(t.Context(), "wide"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		for _, x := range c.status().Tables {
			for _, y := range x.Tablets {
				if strings.HasSuffix(x.Table, deletedMark) && y.State == "open" {
					return "a tablet of the deleted table is served"
				}
			}
		}
		return ""
	})
	if out, code := c.check("--store=" + c.store); code != 0 {
		t.Errorf("check: exit code %d\n%s", code, out)
	}
}
