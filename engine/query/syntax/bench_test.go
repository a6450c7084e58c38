package syntax

import "testing"

func BenchmarkParse(b *testing.B) {
	for _, c := range []struct{ name, text string }{
		{"point", "SELECT _key, f['q'] AS q FROM users WHERE _key = @k"},
		{"group", "SELECT f['country'] AS country, COUNT(*) AS n, SUM(TO_INT64(f['visits'])) FROM users WHERE _key LIKE 'u%' AND f['age'] IS NOT NULL GROUP BY country ORDER BY n DESC LIMIT 10"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(c.text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
