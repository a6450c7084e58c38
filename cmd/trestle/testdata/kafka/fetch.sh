#!/bin/bash
# Usage: fetch.sh DIR
#
# Fetches the jars of a Kafka broker through Maven into DIR, an absolute path.
set -e
mvn -q -B -f "$(dirname "$0")/pom.xml" dependency:copy-dependencies -DoutputDirectory="$1"
