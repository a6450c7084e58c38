#!/bin/bash
# run.sh HOST:PORT [DIR]: the smoke tests of the Python, Node and Java clients
# against a running server, and for Node and Java the SQL of sql.json. DIR (a
# temporary one if not given) gets the clients, from their registries. A client whose
# language is not installed is left out; LANGUAGES names those that are to run.
#
# Over plain text, as to an emulator; or with TLS and login if CA is a file with
# the server's authority and GOOGLE_APPLICATION_CREDENTIALS a key.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
at=${1:?HOST:PORT}
dir=${2:-$(mktemp -d)}
unset BIGTABLE_EMULATOR_HOST SMOKE_ENDPOINT
trust=()
if [ -n "${CA:-}" ]; then
	export SMOKE_ENDPOINT=$at GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=$CA
else
	export BIGTABLE_EMULATOR_HOST=$at
fi
ran=0
wanted() { [[ " ${LANGUAGES:-python node java} " == *" $1 "* ]] && command -v "$2" >/dev/null; }
if wanted python python3; then
	[ -x "$dir/venv/bin/python" ] || python3 -m venv "$dir/venv"
	"$dir/venv/bin/pip" -q install 'google-cloud-bigtable==2.50.2'
	"$dir/venv/bin/python" -W ignore "$here/smoke.py"
	ran=1
fi
if wanted node npm; then
	mkdir -p "$dir/node"
	npm install --silent --prefix "$dir/node" '@google-cloud/bigtable@6.5.1'
	NODE_PATH="$dir/node/node_modules" node "$here/smoke.js"
	NODE_PATH="$dir/node/node_modules" node "$here/sql.js"
	ran=1
fi
if wanted java mvn; then
	mkdir -p "$dir/java"
	[ -s "$dir/java/classpath" ] || mvn -q -f "$here/pom.xml" dependency:build-classpath "-Dmdep.outputFile=$dir/java/classpath"
	if [ -n "${CA:-}" ]; then
		rm -f "$dir/java/trust.p12"
		keytool -importcert -noprompt -alias server -file "$CA" -keystore "$dir/java/trust.p12" -storepass changeit 2>/dev/null
		trust=("-Djavax.net.ssl.trustStore=$dir/java/trust.p12" -Djavax.net.ssl.trustStorePassword=changeit)
	fi
	java -cp "$(cat "$dir/java/classpath")" "${trust[@]}" "$here/Smoke.java"
	java -cp "$(cat "$dir/java/classpath")" "${trust[@]}" "$here/Sql.java" "$here/sql.json"
	ran=1
fi
[ "$ran" = 1 ] || { echo "no language of a client is installed" >&2; exit 1; }
