package reference

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// A Generator writes random queries. The same seed writes the same ones.
type Generator struct {
	rng *rand.Rand
	// scope has the columns that an expression may name.
	scope []column
	next  int // number of the next table
	// aggregates says that an aggregate function may stand here.
	aggregates bool
}

type column struct{ name, typ string }

// NewGenerator returns the Generator of a seed.
func NewGenerator(seed uint64) *Generator {
	return &Generator{rng: rand.New(rand.NewPCG(seed, 7))}
}

// edges are values of each type that are worth meeting.
var edges = map[string][]string{
	"BOOL": {"TRUE", "FALSE", "CAST(NULL AS BOOL)"},
	"INT64": {"0", "1", "-1", "2", "3", "7", "10", "100", "63", "64", "1000000", "9223372036854775807", "-9223372036854775808", "4294967296", "-7",
		"CAST(NULL AS INT64)"},
	"FLOAT64": {"0.0", "-0.0", "1.0", "-1.5", "0.1", "2.5", "-2.5", "1e10", "1e308", "-1e308", "5e-324", "3.141592653589793", "CAST('inf' AS FLOAT64)",
		"CAST('-inf' AS FLOAT64)", "CAST('nan' AS FLOAT64)", "CAST(NULL AS FLOAT64)", "9007199254740993.0", "123456.789"},
	"STRING": {"''", "'a'", "'abc'", "'ABC'", "'äöü€😀'", "' x y '", "'a,b,,c'", "'12'", "'-3.5'", "'true'", "'2020-02-29'", "'%a_'", "'aaa'", "'\\n\\t'", "'ß'", "'Σίσυφος'",
		"CAST(NULL AS STRING)", "'abcabcabc'", "'2024-12-31 23:59:59.999999+00'"},
	"BYTES": {"b''", "b'a'", "b'abc'", "b'\\x00\\xff'", "b'\\xc3\\xa4'", "b'a,b'", "CAST(NULL AS BYTES)", "b'ABC'", "b'\\x80'"},
	"DATE": {"DATE '1970-01-01'", "DATE '0001-01-01'", "DATE '9999-12-31'", "DATE '2020-02-29'", "DATE '2023-12-31'", "DATE '2024-01-01'", "DATE '1969-12-31'",
		"DATE '1900-03-01'", "CAST(NULL AS DATE)"},
	"FLOAT32": {"CAST(0.0 AS FLOAT32)", "CAST(1.5 AS FLOAT32)", "CAST(-0.1 AS FLOAT32)", "CAST(16777217.0 AS FLOAT32)", "CAST('inf' AS FLOAT32)", "CAST('nan' AS FLOAT32)",
		"CAST(1e-45 AS FLOAT32)", "CAST('3.4028235e38' AS FLOAT32)", "CAST(NULL AS FLOAT32)"},
	"ARRAY<INT64>":          {"[1, 2, 3]", "ARRAY<INT64>[]", "[0]", "[1, NULL]", "[9223372036854775807, -1]", "ARRAY<INT64>[NULL]", "CAST(NULL AS ARRAY<INT64>)", "[1, 2]", "[3, 1, 2, 1]"},
	"ARRAY<STRING>":         {"['a', 'b']", "ARRAY<STRING>[]", "['a']", "['', NULL]", "['é', 'A', 'a']", "ARRAY<STRING>[NULL]", "CAST(NULL AS ARRAY<STRING>)", "['b', 'a', 'b']"},
	"ARRAY<FLOAT64>":        {"[1.0, 2.5]", "ARRAY<FLOAT64>[]", "[CAST('nan' AS FLOAT64), 1.0]", "[0.1, NULL]", "[3.0, 4.0]", "CAST(NULL AS ARRAY<FLOAT64>)", "[CAST('inf' AS FLOAT64), -1.0]"},
	"STRUCT<INT64, STRING>": {"(1, 'a')", "(1, 'b')", "(2, CAST(NULL AS STRING))", "(CAST(NULL AS INT64), 'a')", "CAST(NULL AS STRUCT<INT64, STRING>)", "(0, '')"},
	"TIMESTAMP": {"TIMESTAMP '1970-01-01 00:00:00+00'", "TIMESTAMP '0001-01-01 00:00:00+00'", "TIMESTAMP '9999-12-31 23:59:59.999999+00'",
		"TIMESTAMP '2020-02-29 12:34:56.789+00'", "TIMESTAMP '2024-03-10 10:30:00+00'", "TIMESTAMP '1969-12-31 23:59:59.999999+00'", "CAST(NULL AS TIMESTAMP)"},
}

// scalars are the types of columns.
var scalars = []string{"BOOL", "INT64", "INT64", "INT64", "FLOAT64", "FLOAT64", "STRING", "STRING", "BYTES", "DATE", "TIMESTAMP"}

// columns are the types of columns: those that are no scalars can be less.
var columns = append([]string{"FLOAT32", "ARRAY<INT64>", "ARRAY<STRING>", "ARRAY<FLOAT64>", "STRUCT<INT64, STRING>"}, append(scalars, scalars...)...)

// A form is a way to write an expression of a type. Each {TYPE} is replaced by an
// expression of that type, {PART} by a part of a date, and so on (choices).
type form struct{ typ, text string }

// forms are those of the functions that the random queries use. "T" stands for any
// scalar type, the same in the whole form.
var forms = []form{
	{"T", "IF({BOOL}, {T}, {T})"}, {"T", "COALESCE({T}, {T})"}, {"T", "IFNULL({T}, {T})"}, {"T", "NULLIF({T}, {T})"},
	{"T", "CASE WHEN {BOOL} THEN {T} WHEN {BOOL} THEN {T} ELSE {T} END"}, {"T", "CASE {INT64} WHEN {INT64} THEN {T} ELSE {T} END"},
	{"T", "[{T}, {T}, {T}][SAFE_OFFSET({INT64})]"}, {"T", "ARRAY_REVERSE([{T}, {T}])[SAFE_ORDINAL({INT64})]"},
	{"T", "STRUCT({T} AS a, {INT64} AS b).a"}, {"T", "IFERROR({T}, {T})"},
	{"BOOL", "{BOOL} AND {BOOL}"}, {"BOOL", "{BOOL} OR {BOOL}"}, {"BOOL", "NOT {BOOL}"},
	{"BOOL", "{T} = {T}"}, {"BOOL", "{T} != {T}"}, {"BOOL", "{T} < {T}"}, {"BOOL", "{T} >= {T}"}, {"BOOL", "{T} BETWEEN {T} AND {T}"},
	{"BOOL", "{T} IN ({T}, {T}, {T})"}, {"BOOL", "{T} NOT IN ({T}, {T})"}, {"BOOL", "{T} IN UNNEST([{T}, {T}])"}, {"BOOL", "{T} IS NULL"}, {"BOOL", "{T} IS NOT NULL"},
	{"BOOL", "{BOOL} IS TRUE"}, {"BOOL", "{BOOL} IS NOT FALSE"}, {"BOOL", "{T} IS DISTINCT FROM {T}"}, {"BOOL", "{T} IS NOT DISTINCT FROM {T}"},
	{"BOOL", "{STRING} LIKE {STRING}"}, {"BOOL", "{BYTES} LIKE {BYTES}"}, {"BOOL", "STARTS_WITH({STRING}, {STRING})"}, {"BOOL", "ENDS_WITH({STRING}, {STRING})"},
	{"BOOL", "STARTS_WITH({BYTES}, {BYTES})"}, {"BOOL", "REGEXP_CONTAINS({STRING}, {PATTERN})"}, {"BOOL", "IS_NAN({FLOAT64})"}, {"BOOL", "IS_INF({FLOAT64})"},
	{"BOOL", "SAFE_CAST({STRING} AS BOOL)"}, {"BOOL", "CAST({INT64} AS BOOL)"}, {"BOOL", "EXISTS(SELECT 1 FROM UNNEST([{INT64}, {INT64}]) AS e WHERE e > {INT64})"},
	{"BOOL", "({INT64}, {STRING}) = ({INT64}, {STRING})"}, {"BOOL", "{INT64} < {FLOAT64}"}, {"BOOL", "ISERROR({INT64})"},
	{"INT64", "{INT64} + {INT64}"}, {"INT64", "{INT64} - {INT64}"}, {"INT64", "{INT64} * {INT64}"}, {"INT64", "-({INT64})"}, {"INT64", "DIV({INT64}, {INT64})"}, {"INT64", "MOD({INT64}, {INT64})"},
	{"INT64", "{INT64} & {INT64}"}, {"INT64", "{INT64} | {INT64}"}, {"INT64", "{INT64} ^ {INT64}"}, {"INT64", "~({INT64})"}, {"INT64", "{INT64} << {SMALL}"}, {"INT64", "{INT64} >> {SMALL}"},
	{"INT64", "ABS({INT64})"}, {"INT64", "SIGN({INT64})"}, {"INT64", "SAFE_ADD({INT64}, {INT64})"}, {"INT64", "SAFE_SUBTRACT({INT64}, {INT64})"}, {"INT64", "SAFE_MULTIPLY({INT64}, {INT64})"},
	{"INT64", "SAFE_NEGATE({INT64})"}, {"INT64", "GREATEST({INT64}, {INT64}, {INT64})"}, {"INT64", "LEAST({INT64}, {INT64})"}, {"INT64", "BIT_COUNT({INT64})"},
	{"INT64", "LENGTH({STRING})"}, {"INT64", "LENGTH({BYTES})"}, {"INT64", "BYTE_LENGTH({STRING})"}, {"INT64", "CHAR_LENGTH({STRING})"}, {"INT64", "STRPOS({STRING}, {STRING})"},
	{"INT64", "INSTR({STRING}, {STRING}, {NONZERO}, {POSITIVE})"}, {"INT64", "ASCII({STRING})"}, {"INT64", "UNICODE({STRING})"}, {"INT64", "ARRAY_LENGTH([{INT64}, {INT64}])"},
	{"INT64", "ARRAY_LENGTH(SPLIT({STRING}, {STRING}))"}, {"INT64", "SAFE_CAST({STRING} AS INT64)"}, {"INT64", "SAFE_CAST({FLOAT64} AS INT64)"}, {"INT64", "CAST({BOOL} AS INT64)"},
	{"INT64", "EXTRACT({PART} FROM {DATE})"}, {"INT64", "EXTRACT({TIMEPART} FROM {TIMESTAMP})"}, {"INT64", "EXTRACT({TIMEPART} FROM {TIMESTAMP} AT TIME ZONE {ZONE})"},
	{"INT64", "DATE_DIFF({DATE}, {DATE}, {TRUNCPART})"}, {"INT64", "TIMESTAMP_DIFF({TIMESTAMP}, {TIMESTAMP}, {TSPART})"}, {"INT64", "UNIX_DATE({DATE})"},
	{"INT64", "UNIX_SECONDS({TIMESTAMP})"}, {"INT64", "UNIX_MILLIS({TIMESTAMP})"}, {"INT64", "UNIX_MICROS({TIMESTAMP})"}, {"INT64", "FARM_FINGERPRINT({STRING})"},
	{"INT64", "(SELECT SUM(e) FROM UNNEST([{SMALL}, {SMALL}]) AS e)"}, {"INT64", "(SELECT COUNT(*) FROM UNNEST([{T}, {T}]) AS e WHERE e = {T})"},
	{"FLOAT64", "{FLOAT64} + {FLOAT64}"}, {"FLOAT64", "{FLOAT64} - {FLOAT64}"}, {"FLOAT64", "{FLOAT64} * {FLOAT64}"}, {"FLOAT64", "{FLOAT64} / {FLOAT64}"}, {"FLOAT64", "{INT64} / {INT64}"},
	{"FLOAT64", "SAFE_DIVIDE({FLOAT64}, {FLOAT64})"}, {"FLOAT64", "IEEE_DIVIDE({FLOAT64}, {FLOAT64})"}, {"FLOAT64", "-({FLOAT64})"}, {"FLOAT64", "ABS({FLOAT64})"},
	{"FLOAT64", "ROUND({FLOAT64})"}, {"FLOAT64", "ROUND({FLOAT64}, {DIGITS})"}, {"FLOAT64", "TRUNC({FLOAT64})"}, {"FLOAT64", "TRUNC({FLOAT64}, {DIGITS})"}, {"FLOAT64", "CEIL({FLOAT64})"},
	{"FLOAT64", "FLOOR({FLOAT64})"}, {"FLOAT64", "SIGN({FLOAT64})"}, {"FLOAT64", "SAFE.SQRT({FLOAT64})"}, {"FLOAT64", "SAFE.LN({FLOAT64})"}, {"FLOAT64", "SAFE.LOG({FLOAT64}, {FLOAT64})"},
	{"FLOAT64", "SAFE.LOG10({FLOAT64})"}, {"FLOAT64", "SAFE.EXP({FLOAT64})"}, {"FLOAT64", "SAFE.POW({FLOAT64}, {FLOAT64})"}, {"FLOAT64", "MOD({INT64}, {POSITIVE}) * 0.5"},
	{"FLOAT64", "SIN({FLOAT64})"}, {"FLOAT64", "COS({FLOAT64})"}, {"FLOAT64", "ATAN({FLOAT64})"}, {"FLOAT64", "ATAN2({FLOAT64}, {FLOAT64})"}, {"FLOAT64", "TANH({FLOAT64})"},
	{"FLOAT64", "GREATEST({FLOAT64}, {FLOAT64})"}, {"FLOAT64", "LEAST({FLOAT64}, {FLOAT64}, {FLOAT64})"}, {"FLOAT64", "CAST({INT64} AS FLOAT64)"}, {"FLOAT64", "SAFE_CAST({STRING} AS FLOAT64)"},
	{"FLOAT64", "CAST(CAST({FLOAT64} AS FLOAT32) AS FLOAT64)"},
	{"STRING", "CONCAT({STRING}, {STRING})"}, {"STRING", "{STRING} || {STRING}"}, {"STRING", "UPPER({STRING})"}, {"STRING", "LOWER({STRING})"}, {"STRING", "INITCAP({STRING})"},
	{"STRING", "TRIM({STRING})"}, {"STRING", "TRIM({STRING}, {STRING})"}, {"STRING", "LTRIM({STRING}, {STRING})"}, {"STRING", "RTRIM({STRING})"}, {"STRING", "REVERSE({STRING})"},
	{"STRING", "SUBSTR({STRING}, {SMALL})"}, {"STRING", "SUBSTR({STRING}, {SMALL}, {COUNT})"}, {"STRING", "LEFT({STRING}, {COUNT})"}, {"STRING", "RIGHT({STRING}, {COUNT})"},
	{"STRING", "REPEAT({STRING}, {COUNT})"}, {"STRING", "REPLACE({STRING}, {STRING}, {STRING})"}, {"STRING", "LPAD({STRING}, {COUNT}, 'xy')"}, {"STRING", "RPAD({STRING}, {COUNT})"},
	{"STRING", "TRANSLATE({STRING}, 'abc', 'xyz')"}, {"STRING", "REGEXP_REPLACE({STRING}, {PATTERN}, 'x')"}, {"STRING", "REGEXP_EXTRACT({STRING}, {PATTERN})"},
	{"STRING", "TO_HEX({BYTES})"}, {"STRING", "SAFE_CONVERT_BYTES_TO_STRING({BYTES})"}, {"STRING", "SOUNDEX({STRING})"},
	{"STRING", "NORMALIZE({STRING}, NFKD)"}, {"STRING", "NORMALIZE_AND_CASEFOLD({STRING})"}, {"STRING", "SPLIT({STRING}, ',')[SAFE_OFFSET({SMALL})]"},
	{"STRING", "ARRAY_TO_STRING([{STRING}, {STRING}], {STRING})"}, {"STRING", "ARRAY_TO_STRING([{STRING}, {STRING}], '-', 'null')"}, {"STRING", "CHR({COUNT})"},
	{"STRING", "CAST({INT64} AS STRING)"}, {"STRING", "CAST({FLOAT64} AS STRING)"}, {"STRING", "CAST({BOOL} AS STRING)"}, {"STRING", "CAST({DATE} AS STRING)"}, {"STRING", "CAST({TIMESTAMP} AS STRING)"},
	{"STRING", "SAFE_CAST({BYTES} AS STRING)"}, {"STRING", "FORMAT('%d|%5d|%-5d|%05d', {INT64}, {INT64}, {INT64}, {INT64})"}, {"STRING", "FORMAT('%s|%10s|%t|%T', {STRING}, {STRING}, {STRING}, {STRING})"},
	{"STRING", "FORMAT('%f|%.2f|%e|%g', {FLOAT64}, {FLOAT64}, {FLOAT64}, {FLOAT64})"}, {"STRING", "FORMAT('%T', {T})"}, {"STRING", "FORMAT('%t', [{T}, {T}])"}, {"STRING", "FORMAT('%x|%o', {INT64}, {COUNT})"},
	{"STRING", "FORMAT_DATE('%Y-%m-%d %j %U %a %b %G-%V %Q', {DATE})"}, {"STRING", "FORMAT_TIMESTAMP('%F %T %E6S %Z', {TIMESTAMP})"}, {"STRING", "FORMAT_TIMESTAMP('%c %z', {TIMESTAMP}, {ZONE})"},
	{"STRING", "STRING({TIMESTAMP}, {ZONE})"}, {"STRING", "STRING({DATE})"},
	{"BYTES", "CONCAT({BYTES}, {BYTES})"}, {"BYTES", "UPPER({BYTES})"}, {"BYTES", "REVERSE({BYTES})"}, {"BYTES", "SUBSTR({BYTES}, {SMALL}, {COUNT})"}, {"BYTES", "CAST({STRING} AS BYTES)"},
	{"BYTES", "LPAD({BYTES}, {COUNT})"}, {"BYTES", "REPLACE({BYTES}, {BYTES}, {BYTES})"}, {"BYTES", "TRIM({BYTES}, {BYTES})"}, {"BYTES", "MD5({STRING})"}, {"BYTES", "SHA1({BYTES})"}, {"BYTES", "SHA256({STRING})"},
	{"BYTES", "SAFE.FROM_HEX({STRING})"}, {"BYTES", "SAFE.FROM_BASE64({STRING})"}, {"BYTES", "REPEAT({BYTES}, {COUNT})"}, {"BYTES", "~{BYTES}"}, {"BYTES", "SAFE.CODE_POINTS_TO_BYTES([{COUNT}, {COUNT}])"},
	{"DATE", "SAFE.DATE_ADD({DATE}, INTERVAL {SMALL} {TRUNCPART})"}, {"DATE", "SAFE.DATE_SUB({DATE}, INTERVAL {COUNT} DAY)"}, {"DATE", "SAFE.DATE_TRUNC({DATE}, {TRUNCPART})"}, {"DATE", "SAFE.LAST_DAY({DATE}, {TRUNCPART})"},
	{"DATE", "SAFE.DATE(2020, {COUNT}, {COUNT})"}, {"DATE", "DATE({TIMESTAMP})"}, {"DATE", "SAFE.DATE({TIMESTAMP}, {ZONE})"}, {"DATE", "SAFE.DATE_FROM_UNIX_DATE({INT64})"}, {"DATE", "SAFE_CAST({STRING} AS DATE)"},
	{"DATE", "SAFE.PARSE_DATE('%Y-%m-%d', {STRING})"}, {"DATE", "EXTRACT(DATE FROM {TIMESTAMP})"}, {"DATE", "GREATEST({DATE}, {DATE})"},
	{"TIMESTAMP", "SAFE.TIMESTAMP_ADD({TIMESTAMP}, INTERVAL {INT64} {TSPART})"}, {"TIMESTAMP", "SAFE.TIMESTAMP_SUB({TIMESTAMP}, INTERVAL {SMALL} {TSPART})"}, {"TIMESTAMP", "SAFE.TIMESTAMP_TRUNC({TIMESTAMP}, {TSTRUNC})"},
	{"TIMESTAMP", "SAFE.TIMESTAMP_TRUNC({TIMESTAMP}, {TSTRUNC}, {ZONE})"}, {"TIMESTAMP", "TIMESTAMP({DATE})"}, {"TIMESTAMP", "SAFE.TIMESTAMP({DATE}, {ZONE})"}, {"TIMESTAMP", "SAFE.TIMESTAMP({STRING})"},
	{"TIMESTAMP", "SAFE.TIMESTAMP_SECONDS({INT64})"}, {"TIMESTAMP", "SAFE.TIMESTAMP_MILLIS({INT64})"}, {"TIMESTAMP", "SAFE.TIMESTAMP_MICROS({INT64})"}, {"TIMESTAMP", "SAFE_CAST({STRING} AS TIMESTAMP)"},
	{"TIMESTAMP", "SAFE.PARSE_TIMESTAMP('%F %T', {STRING})"},
	{"FLOAT32", "CAST({FLOAT32} AS FLOAT32)"}, {"FLOAT32", "SAFE_CAST({FLOAT64} AS FLOAT32)"}, {"FLOAT32", "ABS({FLOAT32})"}, {"FLOAT32", "-({FLOAT32})"}, {"FLOAT32", "SIGN({FLOAT32})"},
	{"FLOAT32", "IF({BOOL}, {FLOAT32}, {FLOAT32})"}, {"FLOAT32", "GREATEST({FLOAT32}, {FLOAT32})"}, {"FLOAT32", "SAFE_CAST({STRING} AS FLOAT32)"}, {"FLOAT32", "CAST({SMALL} AS FLOAT32)"},
	{"FLOAT32", "COALESCE({FLOAT32}, {FLOAT32})"}, {"FLOAT64", "{FLOAT32} + {FLOAT32}"}, {"FLOAT64", "{FLOAT32} * {FLOAT64}"}, {"FLOAT64", "CAST({FLOAT32} AS FLOAT64)"}, {"FLOAT64", "ROUND({FLOAT32}, 1)"},
	{"BOOL", "{FLOAT32} = {FLOAT64}"}, {"BOOL", "{FLOAT32} < {FLOAT32}"}, {"BOOL", "{FLOAT32} IN ({FLOAT32}, {FLOAT32})"}, {"STRING", "CAST({FLOAT32} AS STRING)"}, {"STRING", "FORMAT('%T|%g|%.3f', {FLOAT32}, {FLOAT32}, {FLOAT32})"},
	{"ARRAY<INT64>", "ARRAY_CONCAT({ARRAY<INT64>}, {ARRAY<INT64>})"}, {"ARRAY<INT64>", "{ARRAY<INT64>} || {ARRAY<INT64>}"}, {"ARRAY<INT64>", "ARRAY_REVERSE({ARRAY<INT64>})"},
	{"ARRAY<INT64>", "ARRAY(SELECT e + 1 FROM UNNEST({ARRAY<INT64>}) AS e WHERE e < 100 ORDER BY e)"}, {"ARRAY<INT64>", "IF({BOOL}, {ARRAY<INT64>}, {ARRAY<INT64>})"},
	{"ARRAY<INT64>", "GENERATE_ARRAY({SMALL}, {COUNT})"}, {"ARRAY<INT64>", "GENERATE_ARRAY({COUNT}, {SMALL}, -2)"}, {"ARRAY<INT64>", "TO_CODE_POINTS({STRING})"}, {"ARRAY<INT64>", "[{INT64}, {INT64}]"},
	{"ARRAY<INT64>", "COALESCE({ARRAY<INT64>}, {ARRAY<INT64>})"}, {"ARRAY<INT64>", "ARRAY_SLICE({ARRAY<INT64>}, {SMALL}, {SMALL})"}, {"ARRAY<INT64>", "ARRAY_FILTER({ARRAY<INT64>}, e -> e > {INT64})"},
	{"ARRAY<INT64>", "ARRAY_TRANSFORM({ARRAY<INT64>}, (e, i) -> SAFE_ADD(e, i))"}, {"ARRAY<INT64>", "ARRAY_FIRST_N({ARRAY<INT64>}, {COUNT})"}, {"ARRAY<INT64>", "GREATEST({ARRAY<INT64>}, {ARRAY<INT64>})"},
	{"ARRAY<INT64>", "ARRAY(SELECT DISTINCT e FROM UNNEST({ARRAY<INT64>}) AS e ORDER BY e DESC)"}, {"ARRAY<INT64>", "ARRAY(SELECT e FROM UNNEST({ARRAY<INT64>}) AS e WITH OFFSET AS o ORDER BY o DESC LIMIT 2)"},
	{"ARRAY<STRING>", "SPLIT({STRING}, ',')"}, {"ARRAY<STRING>", "ARRAY_CONCAT({ARRAY<STRING>}, {ARRAY<STRING>})"}, {"ARRAY<STRING>", "REGEXP_EXTRACT_ALL({STRING}, {PATTERN})"}, {"ARRAY<STRING>", "ARRAY_REVERSE({ARRAY<STRING>})"},
	{"ARRAY<STRING>", "ARRAY(SELECT UPPER(e) FROM UNNEST({ARRAY<STRING>}) AS e WITH OFFSET AS o WHERE o != 1 ORDER BY o)"}, {"ARRAY<STRING>", "ARRAY_TRANSFORM({ARRAY<STRING>}, e -> CONCAT(e, {STRING}))"},
	{"ARRAY<FLOAT64>", "ARRAY_CONCAT({ARRAY<FLOAT64>}, {ARRAY<FLOAT64>})"}, {"ARRAY<FLOAT64>", "[{FLOAT64}, {FLOAT64}]"}, {"ARRAY<FLOAT64>", "ARRAY(SELECT e * 2 FROM UNNEST({ARRAY<INT64>}) AS e WITH OFFSET AS o WHERE e < 1000 ORDER BY o)"},
	{"INT64", "{ARRAY<INT64>}[SAFE_OFFSET({SMALL})]"}, {"INT64", "{ARRAY<INT64>}[SAFE_ORDINAL({COUNT})]"}, {"INT64", "ARRAY_LENGTH({ARRAY<STRING>})"}, {"STRING", "{ARRAY<STRING>}[SAFE_OFFSET({SMALL})]"},
	{"INT64", "(SELECT COUNT(*) FROM UNNEST({ARRAY<STRING>}) AS e WITH OFFSET AS o WHERE o >= {COUNT} OR e > {STRING})"}, {"INT64", "(SELECT MAX(e) FROM UNNEST({ARRAY<INT64>}) AS e)"},
	{"INT64", "ARRAY_MAX({ARRAY<INT64>})"}, {"INT64", "ARRAY_MIN({ARRAY<INT64>})"}, {"FLOAT64", "ARRAY_AVG([{SMALL}, {SMALL}])"}, {"INT64", "ARRAY_SUM([{SMALL}, {SMALL}, {SMALL}])"}, {"FLOAT64", "ARRAY_MAX({ARRAY<FLOAT64>})"},
	{"BOOL", "{INT64} IN UNNEST({ARRAY<INT64>})"}, {"BOOL", "{STRING} NOT IN UNNEST({ARRAY<STRING>})"}, {"BOOL", "{ARRAY<INT64>} = {ARRAY<INT64>}"}, {"BOOL", "{ARRAY<STRING>} != {ARRAY<STRING>}"},
	{"BOOL", "{ARRAY<INT64>} < {ARRAY<INT64>}"}, {"BOOL", "{ARRAY<FLOAT64>} >= {ARRAY<FLOAT64>}"}, {"BOOL", "{ARRAY<STRING>} BETWEEN {ARRAY<STRING>} AND {ARRAY<STRING>}"}, {"BOOL", "{ARRAY<STRING>} IS DISTINCT FROM {ARRAY<STRING>}"},
	{"BOOL", "ARRAY_INCLUDES({ARRAY<INT64>}, {INT64})"}, {"BOOL", "ARRAY_INCLUDES_ANY({ARRAY<STRING>}, {ARRAY<STRING>})"}, {"BOOL", "ARRAY_INCLUDES_ALL({ARRAY<INT64>}, {ARRAY<INT64>})"}, {"BOOL", "ARRAY_IS_DISTINCT({ARRAY<STRING>})"},
	{"BOOL", "ARRAY_INCLUDES({ARRAY<INT64>}, e -> e < {INT64})"}, {"BOOL", "{ARRAY<INT64>} IS NULL"}, {"STRING", "ARRAY_TO_STRING({ARRAY<STRING>}, {STRING}, {STRING})"}, {"STRING", "FORMAT('%t|%T', {ARRAY<INT64>}, {ARRAY<STRING>})"},
	{"STRING", "FORMAT('%T', {ARRAY<FLOAT64>})"}, {"STRING", "FORMAT('%T|%t', {STRUCT<INT64, STRING>}, {STRUCT<INT64, STRING>})"},
	{"STRUCT<INT64, STRING>", "({INT64}, {STRING})"}, {"STRUCT<INT64, STRING>", "STRUCT({INT64} AS a, {STRING} AS b)"}, {"STRUCT<INT64, STRING>", "IF({BOOL}, {STRUCT<INT64, STRING>}, {STRUCT<INT64, STRING>})"},
	{"STRUCT<INT64, STRING>", "[{STRUCT<INT64, STRING>}, {STRUCT<INT64, STRING>}][SAFE_OFFSET({SMALL})]"}, {"STRUCT<INT64, STRING>", "CAST(({FLOAT64T}, {INT64}) AS STRUCT<INT64, STRING>)"},
	{"INT64", "{STRUCT<INT64, STRING>}[OFFSET(0)]"}, {"STRING", "{STRUCT<INT64, STRING>}[ORDINAL(2)]"}, {"BOOL", "{STRUCT<INT64, STRING>} = {STRUCT<INT64, STRING>}"}, {"BOOL", "{STRUCT<INT64, STRING>} IN ({STRUCT<INT64, STRING>}, ({INT64}, {STRING}))"},
	{"BOOL", "{STRUCT<INT64, STRING>} IS NULL"}, {"BOOL", "{STRUCT<INT64, STRING>} IS NOT DISTINCT FROM {STRUCT<INT64, STRING>}"},
	{"STRING", "CAST({INT64} AS STRING FORMAT '999,999')"}, {"STRING", "CAST({DATE} AS STRING FORMAT 'YYYY-MON-DD DAY')"}, {"STRING", "CAST({TIMESTAMP} AS STRING FORMAT 'YYYY/MM/DD HH24:MI:SS.FF3')"}, {"STRING", "CAST({BYTES} AS STRING FORMAT 'HEX')"},
	{"STRING", "TO_BASE64({BYTES})"}, {"STRING", "TO_BASE32({BYTES})"}, {"STRING", "SAFE.CODE_POINTS_TO_STRING({ARRAY<INT64>})"}, {"BYTES", "SHA512({STRING})"}, {"INT64", "REGEXP_INSTR({STRING}, {PATTERN})"}, {"INT64", "BIT_COUNT({BYTES})"},
	{"INT64", "SAFE_CAST({STRING} AS INT64)"}, {"BOOL", "{STRING} LIKE ANY ({STRING}, {STRING})"}, {"BOOL", "{STRING} NOT LIKE ALL ({STRING}, {STRING})"}, {"INT64", "EDIT_DISTANCE({STRING}, {STRING})"}, {"T", "NULLIFERROR({T})"},
	{"DATE", "DATE_TRUNC({DATE}, {TRUNCPART})"}, {"INT64", "DATE_DIFF({DATE}, {DATE}, ISOWEEK)"}, {"INT64", "RANGE_BUCKET({INT64}, [0, 10, 100])"}, {"FLOAT64", "EUCLIDEAN_DISTANCE([{SMALL}, 1.0], [{COUNT}, 2.5])"},
	{"FLOAT64", "CBRT({FLOAT64})"}, {"FLOAT64", "SAFE.ACOS({FLOAT64})"}, {"FLOAT64", "SAFE.SINH({FLOAT64})"}, {"FLOAT64", "SAFE.ATANH({FLOAT64})"}, {"FLOAT64", "NULLIFERROR({FLOAT64} + {FLOAT32})"},
	{"STRING", "WITH(a AS {STRING}, b AS LENGTH(a), IF(b > 2, UPPER(a), a))"}, {"ARRAY<INT64>", "ARRAY(SELECT e FROM UNNEST({ARRAY<INT64>}) AS e INTERSECT DISTINCT SELECT 1)"},
}

// choices are what stands for a word in braces that is no type.
var choices = map[string][]string{
	"FLOAT64T": {"1.5", "-2.0", "CAST(NULL AS FLOAT64)", "3.0"},
	"SMALL":    {"0", "1", "2", "-1", "3", "-3", "5", "70"}, "COUNT": {"0", "1", "2", "3", "5", "12"}, "POSITIVE": {"1", "2", "3"}, "NONZERO": {"1", "-1", "2"},
	"DIGITS": {"0", "1", "2", "-1", "-2", "10"}, "PATTERN": {"'a'", "r'[a-c]+'", "'^a.c'", "r'(b)'", "r'\\d+'", "'.'", "''", "'ä|b'"},
	"PART":      {"YEAR", "MONTH", "DAY", "QUARTER", "DAYOFWEEK", "DAYOFYEAR", "WEEK", "WEEK(MONDAY)", "ISOWEEK", "ISOYEAR"},
	"TIMEPART":  {"YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND", "DAYOFWEEK", "ISOWEEK", "ISOYEAR", "QUARTER"},
	"TRUNCPART": {"DAY", "WEEK", "MONTH", "QUARTER", "YEAR"}, "TSPART": {"MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY"},
	"TSTRUNC": {"MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR", "ISOWEEK", "ISOYEAR"},
	"ZONE":    {"'UTC'", "'America/Los_Angeles'", "'Asia/Kolkata'", "'+05:30'", "'Europe/Berlin'"},
}

// aggregates are the forms of aggregate functions.
var aggregates = []form{
	{"INT64", "COUNT(*)"}, {"INT64", "COUNT({T})"}, {"INT64", "COUNT(DISTINCT {T})"}, {"INT64", "COUNTIF({BOOL})"}, {"INT64", "SUM({SMALLCOL})"}, {"FLOAT64", "AVG({SMALLCOL})"},
	{"T", "MIN({T})"}, {"T", "MAX({T})"}, {"BOOL", "LOGICAL_AND({BOOL})"}, {"BOOL", "LOGICAL_OR({BOOL})"}, {"INT64", "BIT_AND({INT64})"}, {"INT64", "BIT_OR({INT64})"}, {"INT64", "BIT_XOR({INT64})"},
	{"STRING", "STRING_AGG({x:STRING}, '|' ORDER BY {x})"}, {"INT64", "ARRAY_LENGTH(ARRAY_AGG({T}))"}, {"STRING", "FORMAT('%T', ARRAY_AGG({x:INT64} IGNORE NULLS ORDER BY {x} LIMIT 3))"},
	{"INT64", "SUM(DISTINCT {SMALLCOL})"}, {"FLOAT64", "VAR_SAMP({SMALLCOL})"}, {"FLOAT64", "STDDEV_POP({SMALLCOL})"}, {"INT64", "MIN({INT64} HAVING MAX {INT64})"},
	{"T", "MAX({T} HAVING MIN {DATE})"}, {"INT64", "COUNT({T} HAVING MAX {STRING})"}, {"STRING", "STRING_AGG({x:STRING}, '-' ORDER BY {x} DESC LIMIT 2)"},
	{"ARRAY<INT64>", "MIN({ARRAY<INT64>})"}, {"ARRAY<STRING>", "MAX({ARRAY<STRING>})"},
	{"FLOAT32", "MIN({FLOAT32})"}, {"INT64", "COUNT(DISTINCT {ARRAY<INT64>})"}, {"FLOAT64", "COVAR_POP({SMALLCOL}, {SMALLCOL})"}, {"FLOAT64", "COVAR_SAMP({SMALLCOL}, {SMALLCOL})"}, {"FLOAT64", "CORR({SMALLCOL}, {SMALLCOL})"},
	{"FLOAT64", "VAR_POP({SMALLCOL})"}, {"FLOAT64", "STDDEV_SAMP(DISTINCT {SMALLCOL})"}, {"FLOAT64", "AVG(DISTINCT {SMALLCOL})"}, {"FLOAT64", "SUM({SMALLCOL} * 0.25)"}, {"INT64", "APPROX_COUNT_DISTINCT({T})"},
	{"INT64", "COUNTIF(DISTINCT {BOOL})"}, {"INT64", "BIT_XOR(DISTINCT {INT64})"}, {"INT64", "SUM({SMALLCOL} HAVING MAX {INT64})"}, {"INT64", "ARRAY_LENGTH(ARRAY_CONCAT_AGG({ARRAY<INT64>}))"}, {"FLOAT32", "MAX({FLOAT32})"},
	{"BOOL", "ANY_VALUE({BOOL}) IS NULL AND FALSE"}, {"INT64", "IFNULL(SUM({SMALLCOL}), -1) + COUNT(*)"}, {"STRING", "STRING_AGG({x:STRING}, CAST(NULL AS STRING) ORDER BY {x})"},
	{"ARRAY<INT64>", "ARRAY_AGG(DISTINCT {x:INT64} ORDER BY {x} LIMIT 5)"}, {"STRING", "FORMAT('%T', ARRAY_AGG(DISTINCT {x:T} ORDER BY {x} DESC NULLS LAST LIMIT 2))"}, {"ARRAY<STRING>", "ARRAY_AGG({x:STRING} ORDER BY {x} NULLS LAST)"},
	{"STRING", "STRING_AGG(DISTINCT {x:STRING}, ',' ORDER BY {x})"}, {"STRING", "FORMAT('%T', ARRAY_AGG({x:T} ORDER BY {x}))"}, {"BYTES", "STRING_AGG({x:BYTES}, b'-' ORDER BY {x})"},
}

func (g *Generator) pick(list []string) string { return list[g.rng.IntN(len(list))] }

// Expr writes an expression of a type.
func (g *Generator) Expr(typ string, depth int) string {
	var named []string
	for _, c := range g.scope {
		if c.typ == typ {
			named = append(named, c.name)
		}
	}
	if depth <= 0 || g.rng.IntN(5) == 0 {
		if len(named) > 0 && g.rng.IntN(4) > 0 {
			return g.pick(named)
		}
		return g.pick(edges[typ])
	}
	if len(g.scope) > 0 && depth > 1 && !g.aggregates && g.rng.IntN(12) == 0 {
		if text := g.subquery(typ, depth-1); text != "" {
			return text
		}
	}
	list := forms
	if g.aggregates && g.rng.IntN(3) == 0 {
		list = aggregates
	}
	for {
		f := list[g.rng.IntN(len(list))]
		if f.typ != typ && f.typ != "T" {
			continue
		}
		any := typ
		if f.typ != "T" {
			any = g.pick(scalars)
		}
		inner := *g
		inner.aggregates = g.aggregates && &list[0] != &aggregates[0]
		text := inner.fill(f.text, any, depth-1)
		g.next = inner.next
		return "(" + text + ")"
	}
}

// fill replaces what stands in braces. {x:TYPE} gives what it writes a name: {x} stands
// for the same expression, so that an order by it has one result.
func (g *Generator) fill(text, any string, depth int) string {
	var out strings.Builder
	same := ""
	for {
		before, rest, found := strings.Cut(text, "{")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		word, after, _ := strings.Cut(rest, "}")
		typ, named := strings.CutPrefix(word, "x:")
		switch {
		case named:
			if typ == "T" {
				typ = any
			}
			same = g.Expr(typ, depth)
			for strings.HasPrefix(same, "'") || strings.HasPrefix(same, "b'") || same == "NULL" || !strings.ContainsAny(same, "(_") {
				same = "IF(TRUE, " + same + ", " + same + ")" // ORDER BY takes no literal
			}
			out.WriteString(same)
		case word == "x":
			out.WriteString(same)
		case word == "T":
			out.WriteString(g.Expr(any, depth))
		case word == "SMALLCOL":
			out.WriteString("MOD(" + g.Expr("INT64", 0) + ", 1000)")
		case choices[word] != nil:
			out.WriteString(g.pick(choices[word]))
		default:
			out.WriteString(g.Expr(word, depth))
		}
		text = after
	}
}

// table writes a subquery of some rows and returns its columns.
func (g *Generator) table() (string, []column) {
	g.next++
	n := 2 + g.rng.IntN(4)
	cols := make([]column, n)
	for i := range cols {
		cols[i] = column{fmt.Sprintf("c%d_%d", g.next, i), g.pick(columns)}
	}
	var rows []string
	for r := range 1 + g.rng.IntN(8) {
		var values []string
		for _, c := range cols {
			v := g.pick(edges[c.typ])
			if r == 0 {
				v += " AS " + c.name
			}
			values = append(values, v)
		}
		rows = append(rows, "STRUCT("+strings.Join(values, ", ")+")")
	}
	return "(SELECT * FROM UNNEST([" + strings.Join(rows, ", ") + "]))", cols
}

// Query writes a query. ordered says that the order of its rows is fixed.
func (g *Generator) Query() (sql string, ordered bool) {
	g.scope, g.aggregates = nil, false
	switch g.rng.IntN(20) {
	case 0:
		return "SELECT " + g.list(1+g.rng.IntN(4), 3), false
	case 1, 2:
		return g.setOperation(), false
	case 3:
		return g.window(), false
	case 4, 5:
		return g.windows(), false
	case 6, 7:
		return g.groupingSets(), false
	case 8, 9:
		return g.sorted(), true
	case 10:
		return g.with(), false
	case 11:
		return g.recursive(), false
	case 12:
		return g.unnested(), false
	case 13:
		return g.using(), false
	}
	from := g.from()
	where := ""
	if g.rng.IntN(2) == 0 {
		where = " WHERE " + g.Expr("BOOL", 2)
	}
	switch g.rng.IntN(4) {
	case 0:
		return g.grouped(from, where), false
	case 1:
		saved := g.scope
		inner := g.list(2, 2)
		g.scope = saved
		return "SELECT DISTINCT " + inner + from + where, false
	}
	return "SELECT " + g.list(1+g.rng.IntN(4), 3) + from + where, false
}

// list writes a select list.
func (g *Generator) list(n, depth int) string {
	items := make([]string, n)
	for i := range items {
		items[i] = g.Expr(g.pick(columns), depth)
	}
	return strings.Join(items, ", ")
}

func (g *Generator) from() string {
	left, cols := g.table()
	text := " FROM " + left + " AS t1"
	if g.rng.IntN(3) > 0 {
		g.scope = cols
		return text
	}
	right, more := g.table()
	g.scope = append(cols, more...)
	switch kind := g.pick([]string{"CROSS JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"}); kind {
	case "CROSS JOIN":
		return text + " CROSS JOIN " + right + " AS t2"
	default:
		on := g.Expr("BOOL", 1)
		// An equality of two columns, if there are two of a type.
		for _, a := range cols {
			for _, b := range more {
				if a.typ == b.typ && g.rng.IntN(2) == 0 {
					on = a.name + " = " + b.name
				}
			}
		}
		if kind == "FULL JOIN" && !strings.Contains(on, " = ") {
			kind = "LEFT JOIN"
		}
		return text + " " + kind + " " + right + " AS t2 ON " + on
	}
}

func (g *Generator) grouped(from, where string) string {
	var keys []string
	for _, c := range g.scope {
		if g.rng.IntN(3) == 0 && len(keys) < 2 {
			keys = append(keys, c.name)
		}
	}
	var items []string
	items = append(items, keys...)
	for range 1 + g.rng.IntN(3) {
		f := aggregates[g.rng.IntN(len(aggregates))]
		items = append(items, g.fill(f.text, scalars[g.rng.IntN(len(scalars))], 1))
	}
	text := "SELECT " + strings.Join(items, ", ") + from + where
	if len(keys) > 0 {
		text += " GROUP BY " + strings.Join(keys, ", ")
		if g.rng.IntN(3) == 0 {
			text += " HAVING COUNT(*) > 1"
		}
	}
	return text
}

func (g *Generator) window() string {
	table, cols := g.table()
	g.scope = cols
	// A total order, so that every function has one result.
	by := g.order(cols)
	part := ""
	if g.rng.IntN(2) == 0 {
		// NaN would be a partition of its own in any engine, but not a float in GROUP BY of some.
		for _, c := range cols {
			if !strings.Contains(c.typ, "FLOAT") {
				part = "PARTITION BY " + c.name + " "
			}
		}
	}
	f := g.pick([]string{"ROW_NUMBER()", "RANK()", "DENSE_RANK()", "PERCENT_RANK()", "CUME_DIST()", "NTILE(3)", "LAG(" + cols[0].name + ")", "LEAD(" + cols[0].name + ", 2)"})
	agg := g.pick([]string{"COUNT(*)", "FIRST_VALUE(" + cols[0].name + ")", "LAST_VALUE(" + cols[1].name + ")"})
	for _, c := range cols {
		if !strings.HasPrefix(c.typ, "STRUCT") && g.rng.IntN(3) == 0 {
			agg = g.pick([]string{"MIN(", "MAX("}) + c.name + ")"
		}
	}
	frame := g.pick([]string{"", " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING", " ROWS UNBOUNDED PRECEDING", " ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING"})
	names := make([]string, len(cols))
	for i, c := range cols {
		names[i] = c.name
	}
	return fmt.Sprintf("SELECT %s, %s OVER (%sORDER BY %s), %s OVER (%sORDER BY %s%s) FROM %s", strings.Join(names, ", "), f, part, by, agg, part, by, frame, table)
}
