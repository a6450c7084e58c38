// Command beamgo writes 3,000 rows of the table "beam" in a pipeline: row by row
// half of them, in batches the other.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/io/bigtableio"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/register"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/x/beamx"
)

func init() { register.Function1x1(row) }

func row(n int) bigtableio.Mutation {
	m := bigtableio.NewMutation(fmt.Sprintf("row%05d", n))
	m.Set("f", "square", bigtable.Time(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)), []byte(strconv.Itoa(n*n)))
	return *m
}

func main() {
	flag.Parse()
	beam.Init()
	var halves [2][]int
	for n := range 3000 {
		halves[n/1500] = append(halves[n/1500], n)
	}
	p, s := beam.NewPipelineWithRoot()
	bigtableio.Write(s, "p", "i", "beam", beam.ParDo(s, row, beam.CreateList(s, halves[0])))
	bigtableio.WriteBatch(s, "p", "i", "beam", beam.ParDo(s, row, beam.CreateList(s, halves[1])))
	if err := beamx.Run(context.Background(), p); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
