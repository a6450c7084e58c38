#!/bin/bash
# Usage: fetch.sh DIR
#
# Fetches the jars of an HDFS through Maven into DIR.
set -e
mvn -q -B -f "$(dirname "$0")/pom.xml" dependency:copy-dependencies -DoutputDirectory="$1"
