package analyze

import "testing"

// TestRefusals: what aggregates and window functions refuse, with GoogleSQL's words.
func TestRefusals(t *testing.T) {
	for _, tt := range []struct{ query, want string }{
		{"SELECT MIN(STRUCT(1)) FROM UNNEST([1])", "MIN is not defined for arguments of type STRUCT<INT64> [at 1:8]"},
		{"SELECT ARRAY_AGG([1]) FROM UNNEST([1])", "The argument to ARRAY_AGG must not be an array type but was ARRAY<INT64> [at 1:8]"},
		{"SELECT CORR(DISTINCT x, x) FROM UNNEST([1]) x", "DISTINCT is not allowed for function CORR [at 1:8]"},
		{"SELECT APPROX_QUANTILES(x, -1) FROM UNNEST([1]) x", "Argument 2 to APPROX_QUANTILES must be at least 1 [at 1:28]"},
		{"SELECT HLL_COUNT.INIT(x, 9) FROM UNNEST([1]) x", "Argument 2 to HLL_COUNT.INIT must be between 10 and 24 [at 1:26]"},
		{"SELECT NTILE(0) OVER (ORDER BY x) FROM UNNEST([1]) x", "The argument to NTILE must be at least 1 [at 1:14]"},
		{"SELECT PERCENTILE_CONT(x, 1.5) OVER () FROM UNNEST([1]) x", "Argument 2 to PERCENTILE_CONT must be between 0 and 1 [at 1:27]"},
		{"SELECT SUM(x HAVING MAX x) OVER () FROM UNNEST([1]) x", "HAVING modifier is not supported on analytic functions [at 1:14]"},
		{"SELECT FIRST_VALUE(x) OVER () FROM UNNEST([1]) x", "Window ORDER BY is required for analytic function first_value [at 1:28]"},
		// Arrays have an order, but not of structs.
		{"SELECT [STRUCT(1)] < [STRUCT(2)]", "Less than is not defined for arguments of type ARRAY<STRUCT<INT64>> [at 1:8]"},
		{"SELECT GREATEST(1, STRUCT(1))", "GREATEST is not defined for arguments of type STRUCT<INT64> [at 1:8]"},
		{"SELECT MIN(1 HAVING MAX x) FROM (SELECT [1] AS x)", "HAVING modifier does not support expressions of type ARRAY<INT64> [at 1:14]"},
		{"SELECT RANK() OVER (ORDER BY x) FROM (SELECT [STRUCT(1)] AS x)", "Ordering by expressions of type ARRAY containing STRUCT is not allowed [at 1:30]"},
		{"SELECT RANK() OVER (PARTITION BY x ORDER BY 1 + 1) FROM (SELECT STRUCT(1.5) AS x)", "Partitioning by expressions of type STRUCT containing FLOAT64 is not allowed [at 1:34]"},
		// A pattern that is a literal is checked here.
		{"SELECT FORMAT('%d', 'a')", "Invalid type for argument 2 to FORMAT; Expected integer; Got STRING [at 1:8]"},
		{"SELECT SAFE.FORMAT('%d')", "Too few arguments to FORMAT for pattern \"%d\"; Expected 2; Got 1 [at 1:8]"},
		// NULL in an array or a struct is an INT64 to other literals.
		{"SELECT 'a' IN UNNEST([NULL])", "No matching signature for operator IN UNNEST for argument types: STRING, ARRAY<INT64> [at 1:12]"},
		{"SELECT [STRUCT(NULL AS b), STRUCT(FALSE AS b)]", "Array elements of types {STRUCT<b INT64>, STRUCT<b BOOL>} do not have a common supertype [at 1:8]"},
		{"SELECT STRUCT([]) = STRUCT(['a'])", "No matching signature for operator = for argument types: STRUCT<ARRAY<INT64>>, STRUCT<ARRAY<STRING>>\n  Signature: T1 = T1\n    Unable to find common supertype for templated argument <T1>\n      Input types for <T1>: {STRUCT<ARRAY<INT64>>, STRUCT<ARRAY<STRING>>} [at 1:8]"},
		{"(SELECT NULL UNION ALL SELECT NULL) UNION ALL SELECT TRUE", "Column 1 in UNION ALL has incompatible types: INT64, BOOL [at 1:47]"},
		{"SELECT NULL UNION ALL SELECT 1 UNION ALL SELECT 'a'", "Column 1 in UNION ALL has incompatible types: NULL, INT64, STRING [at 1:23]"},
		{"SELECT [] UNION ALL SELECT ['a'] UNION ALL SELECT [1]", "Column 1 in UNION ALL has incompatible types: [], ARRAY<STRING>, ARRAY<INT64> [at 1:21]"},
		{"SELECT 1, [] UNION ALL SELECT 1, 1", "Could not cast literal [] to type INT64 [at 1:11]"},
		// A STRUCT of a type of its own, and one that AS STRUCT makes, are no literals.
		{"SELECT STRUCT<BYTES>(b'a') UNION ALL SELECT STRUCT<STRING>('a')", "Column 1 in UNION ALL has incompatible types: STRUCT<BYTES>, STRUCT<STRING> [at 1:38]"},
		{"SELECT AS STRUCT 'a', 'b' UNION ALL SELECT AS STRUCT NULL, 'b'", "Column 1 in UNION ALL has incompatible types: STRUCT<STRING, STRING>, STRUCT<INT64, STRING> [at 1:37]"},
		{"SELECT CAST(NULL AS BYTES FORMAT 'x')", "FORMAT is not allowed for cast from INT64 to BYTES [at 1:27]"},
		{"SELECT EXTRACT(DAY FROM '2020-01-01')", "EXTRACT does not support literal STRING arguments [at 1:8]"},
		// Parentheses do not count for a place, but around a query.
		{"SELECT [(ARRAY_REVERSE([1]))]", "Cannot construct array with element type ARRAY<INT64> because nested arrays are not supported [at 1:10]"},
		{"SELECT [1, ((SELECT [1]))]", "Cannot construct array with element type ARRAY<INT64> because nested arrays are not supported [at 1:12]"},
	} {
		if _, err := analyzeCase(catalog{}, tt.query, ""); err == nil || err.Error() != tt.want {
			t.Errorf("%s: %v, want %s", tt.query, err, tt.want)
		}
	}
	for _, query := range []string{
		"SELECT MAX(NULL), ARRAY_AGG(NULL) FROM UNNEST([1])",
		"SELECT [STRUCT('a'), STRUCT(NULL)], STRUCT(NULL) = s, [STRUCT(NULL, x), STRUCT(x, x)] FROM (SELECT STRUCT(TRUE) AS s, 'x' AS x)",
		"SELECT STRUCT(1, 2)[SAFE_OFFSET(0)], CAST(STRUCT(STRUCT(NULL)) AS STRUCT<STRUCT<BYTES>>), MAX([1]) FROM UNNEST([1])",
		"SELECT [STRUCT([], x), STRUCT(['b'], 'a')], STRUCT([], x) = STRUCT([1], 'a'), CAST(STRUCT<STRING>('2020-01-01') AS STRUCT<DATE>) FROM (SELECT 'x' AS x)",
		"SELECT 1 AS b, 5 AS z INNER UNION ALL BY NAME SELECT 3 AS b",
		"SELECT LAG(x, 1, x) OVER (ORDER BY x), NTILE(1) OVER (ORDER BY x), PERCENTILE_DISC(x, 1) OVER () FROM UNNEST([1]) x",
	} {
		if _, err := analyzeCase(catalog{}, query, ""); err != nil {
			t.Errorf("%s: %v", query, err)
		}
	}
}
