package admin

import (
	"context"
	"fmt"
	"strings"
)

// Hints tells the operator why the first callers would be refused. Either there
// is no instance, or tables are of instances that were never created, as
// emulator mode and HBase clients make them. There are none in emulator mode. cbt is
// how the operator calls cbt, with what it takes to reach the server.
func (a *Admin) Hints(ctx context.Context, cbt string) ([]string, error) {
	if a.o.Emulator {
		return nil, nil
	}
	created := map[string]bool{}
	err := a.b.ListRecords(ctx, instancePrefix, func(key string, _ []byte, _ uint64) error {
		created[strings.TrimPrefix(key, instancePrefix)] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	ts, err := a.b.ListTables(ctx, "projects")
	if err != nil {
		return nil, err
	}
	var hints []string
	missing, first := 0, ""
	for _, t := range ts {
		if name, _, _ := strings.Cut(t.Name, "/tables/"); !created[name] {
			if missing++; first == "" {
				first = t.Name
			}
		}
	}
	if missing > 0 {
		hints = append(hints, fmt.Sprintf("Tables of instances that nobody created: %d, such as %s.\nThey were made with --emulator, or by HBase clients. Bigtable clients see them once their instance is created, or with --emulator.", missing, first))
	}
	if len(created) == 0 {
		hints = append(hints, "No instance has been created yet. Make one:\n  "+cbt+" -project my-project createinstance my-instance \"My instance\" my-cluster local-a 1 SSD\nor start with --emulator, which takes any project and instance.")
	}
	return hints, nil
}
