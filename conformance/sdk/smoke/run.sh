#!/bin/bash
# run.sh HOST:PORT [DIR]: the smoke tests of the Python and Node clients against
# a running server. DIR (a temporary one if not given) gets the clients, from
# their registries. A client whose language is not installed is left out.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export BIGTABLE_EMULATOR_HOST=${1:?HOST:PORT}
dir=${2:-$(mktemp -d)}
ran=0
if command -v python3 >/dev/null; then
	[ -x "$dir/venv/bin/python" ] || python3 -m venv "$dir/venv"
	"$dir/venv/bin/pip" -q install 'google-cloud-bigtable==2.50.2'
	"$dir/venv/bin/python" -W ignore "$here/smoke.py"
	ran=1
fi
if command -v npm >/dev/null; then
	mkdir -p "$dir/node"
	npm install --silent --prefix "$dir/node" '@google-cloud/bigtable@6.5.1'
	NODE_PATH="$dir/node/node_modules" node "$here/smoke.js"
	ran=1
fi
[ "$ran" = 1 ] || { echo "neither python3 nor npm is installed" >&2; exit 1; }
