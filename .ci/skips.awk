# Of `go test -v`: what `go test` prints, and in the end which tests were skipped, and why.
/^=== (RUN|CONT|NAME) / { test = $3 }
/^ +[a-z0-9_]+\.go:[0-9]+: / { why[test] = $0; sub(/^ +/, "", why[test]) }
/^ *--- SKIP: / { skips[++n] = $3 }
{ lines[++m] = $0 }
/^(ok  |\?   |FAIL)\t/ {
	for (i = /^FAIL/ ? 1 : m; i <= m; i++) print lines[i]
	for (i = 1; i <= n; i++) skipped[++all] = $2 " " skips[i] ": " why[skips[i]]
	split("", why); n = m = 0
	fflush()
}
END {
	for (i = 1; i <= m; i++) print lines[i]
	if (all) print "\nskipped:"
	for (i = 1; i <= all; i++) print skipped[i]
}
