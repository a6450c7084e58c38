#!/bin/bash -eu
# Fetches the libraries of the console's pages from npm, verifies the archives by the
# hashes below, and puts the files into assets/vendor as they are. With "axe FILE" it
# fetches what checks accessibility instead.
set -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# fetch NAME VERSION SHA-512
fetch() {
	(cd "$work" && npm pack --silent "$1@$2" >/dev/null)
	got=$(openssl dgst -sha512 -binary "$work/$1-$2.tgz" | base64 -w0)
	if [ "$got" != "$3" ]; then
		echo "$1 $2 is not what was committed: sha512-$got, want sha512-$3" >&2
		exit 1
	fi
	mkdir -p "$work/$1"
	tar -xzf "$work/$1-$2.tgz" -C "$work/$1" --strip-components=1
}

if [ "${1:-}" = axe ]; then
	fetch axe-core 4.14.1 FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==
	mkdir -p "$(dirname "$2")"
	cp "$work/axe-core/axe.min.js" "$2"
	exit
fi
fetch preact 10.29.8 ej2aVZ+vZ8WO7tvlQWRM9N63A0KzF9q4mWJfDUHgYaIofWY9hu74QdnQrjoPMmZi2/nZ5gN0bJCQF49xQqx09Q==
fetch htm 3.1.1 983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==
fetch uplot 1.6.32 KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==
out=$here/assets/vendor
mkdir -p "$out"
cp "$work/preact/dist/preact.min.umd.js" "$out/preact.js"
cp "$work/preact/hooks/dist/hooks.umd.js" "$out/hooks.js"
cp "$work/htm/dist/htm.umd.js" "$out/htm.js"
cp "$work/uplot/dist/uPlot.iife.min.js" "$out/uplot.js"
cp "$work/uplot/dist/uPlot.min.css" "$out/uplot.css"
for name in preact htm uplot; do cp "$work/$name/LICENSE" "$out/LICENSE.$name"; done
chmod 644 "$out"/*
