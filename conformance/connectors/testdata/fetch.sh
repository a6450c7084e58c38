#!/bin/bash
# Usage: fetch.sh DIR FILE
#
# Fetches what FILE lists into DIR/NAME, its name without the suffix: jars if it is a
# Maven project, a virtual environment if it is requirements of pip. Of a go.mod it
# builds the program, NAME is its directory. Caches of Maven and pip are in DIR too.
set -euo pipefail
name=$(basename "${2%/go.mod}")
to=$1/${name%.*}
if [[ $2 == *.mod ]]; then
	mkdir -p "$to"
	cd "$(dirname "$2")"
	exec go build -o "$to/$name" .
fi
cmp -s "$2" "$to/.fetched" && exit
rm -rf "$to"
case $2 in
*.xml) mvn -q -B ${MAVEN_OPTIONS:-} "-Dmaven.repo.local=$1/m2" -f "$2" dependency:copy-dependencies "-DoutputDirectory=$to" ;;
*.txt)
	python3 -m venv "$to"
	"$to/bin/pip" -q --cache-dir "$1/pip" install -r "$2"
	;;
esac
cp "$2" "$to/.fetched"
