#!/bin/bash
# Usage: fetch.sh DIR [NAME]
#
# Fetches HBase's client, shell, server and test programs, and asynchbase, each
# with what it depends on, through Maven, into DIR/client, DIR/shell and so on; or
# only NAME, such as phoenix, which is fetched by its name only.
set -e
for of in ${2:-client shell server tools async}; do
	mvn -q -B ${MAVEN_OPTIONS:-} -f "$(dirname "$0")/$of.xml" dependency:copy-dependencies -DoutputDirectory="$1/$of"
done
