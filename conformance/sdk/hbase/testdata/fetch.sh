#!/bin/bash
# Usage: fetch.sh DIR
#
# Fetches HBase's client, shell, server and test programs through Maven, each
# with what it depends on, into DIR/client, DIR/shell, DIR/server and DIR/tools.
set -e
for of in client shell server tools; do
	mvn -q -B ${MAVEN_OPTIONS:-} -f "$(dirname "$0")/$of.xml" dependency:copy-dependencies -DoutputDirectory="$1/$of"
done
