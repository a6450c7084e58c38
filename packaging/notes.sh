#!/bin/bash
# Usage: notes.sh VERSION
#
# Prints the part of CHANGELOG.md about a version.
set -euo pipefail
version=${1#v}
notes=$(awk -v version="$version" '/^## / { on = $2 == version; next } on' "$(dirname "$0")/../CHANGELOG.md")
if [ -z "${notes//[[:space:]]/}" ]; then
	echo "CHANGELOG.md says nothing about $version" >&2
	exit 1
fi
echo "$notes"
