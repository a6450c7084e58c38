#!/bin/bash
# Usage: fetch.sh DIR
#
# Fetches HBase's client, shell, server and test programs, and asynchbase, each
# with what it depends on, through Maven, into DIR/client, DIR/shell and so on.
set -e
for of in client shell server tools async; do
	mvn -q -B ${MAVEN_OPTIONS:-} -f "$(dirname "$0")/$of.xml" dependency:copy-dependencies -DoutputDirectory="$1/$of"
done
