#!/bin/bash
# run.sh HOST:PORT DIR: Beam's own test of its change stream connector,
# BigtableChangeStreamIT as it is published, with the direct runner against a running
# server. Java 17 and Maven are needed. DIR gets the jars, some 180 MB, and keeps them
# for the next run.
#
# CA is a file with the server's authority, and GOOGLE_APPLICATION_CREDENTIALS a key of
# it: the connector speaks TLS, and does not go without a login.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
at=${1:?HOST:PORT}
dir=${2:?DIR}
: "${CA:?a file with the authority of the certificate, such as DATA/tls/ca.pem}"
: "${GOOGLE_APPLICATION_CREDENTIALS:?a file with a key, such as DATA/root-key.json}"
project=${PROJECT:-p} instance=${INSTANCE:-beam-changes}
mkdir -p "$dir"
[ -e "$dir/fetched" ] || { mvn -q -B ${MAVEN_OPTIONS:-} -f "$here/pom.xml" dependency:copy-dependencies "-DoutputDirectory=$dir/lib" && touch "$dir/fetched"; }
javac -cp "$dir/lib/*" -d "$dir/classes" "$here/IOITHelper.java" "$here/Instance.java"
rm -f "$dir/trust.p12"
keytool -importcert -noprompt -alias server -file "$CA" -keystore "$dir/trust.p12" -storepass changeit 2>/dev/null
trust=("-Djavax.net.ssl.trustStore=$dir/trust.p12" -Djavax.net.ssl.trustStorePassword=changeit)
java "${trust[@]}" -cp "$dir/classes:$dir/lib/*" Instance "$at" "$project" "$instance"
export BIGTABLE_ENV_ADMIN_ENDPOINT=$at BIGTABLE_ENV_DATA_ENDPOINT=$at
java -Xmx700m "${trust[@]}" -Dorg.slf4j.simpleLogger.defaultLogLevel=${LOG:-warn} \
	"-DbeamTestPipelineOptions=[\"--project=$project\",\"--bigtableChangeStreamInstanceId=$instance\",\"--runner=DirectRunner\",\"--targetParallelism=1\"]" \
	-cp "$dir/classes:$dir/lib/*" org.junit.runner.JUnitCore org.apache.beam.sdk.io.gcp.bigtable.changestreams.it.BigtableChangeStreamIT
