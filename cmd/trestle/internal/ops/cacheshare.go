package ops

// cacheShares estimates how much of the block cache is of which table. What reads bring into
// the cache displaces what was there in proportion.
type cacheShares struct {
	brought map[string]int64 // by table, as of the last look
	there   map[string]float64
}

// estimate sets CacheBytes of reads, whose sum is size.
func (c *cacheShares) estimate(reads []TableReads, size int64) {
	var all float64
	came := make([]float64, len(reads))
	for i := range reads {
		r := &reads[i]
		came[i] = float64(max(0, r.BlockBytes-r.CachedBytes-c.brought[r.Table]))
		all += came[i]
	}
	left := max(0, 1-all/float64(max(size, 1)))
	brought, there := make(map[string]int64, len(reads)), make(map[string]float64, len(reads))
	var sum float64
	for i := range reads {
		r := &reads[i]
		brought[r.Table] = r.BlockBytes - r.CachedBytes
		there[r.Table] = c.there[r.Table]*left + came[i]
		sum += there[r.Table]
	}
	if sum > 0 {
		for i := range reads {
			r := &reads[i]
			there[r.Table] *= float64(size) / sum
			r.CacheBytes = int64(there[r.Table])
		}
	}
	c.brought, c.there = brought, there
}
