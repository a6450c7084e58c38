#!/bin/bash
# Usage: start.sh DIR ZKPORT MASTERPORT REGIONPORT
#
# Fetches HBase through Maven and runs it standalone (ZooKeeper, master and
# region server in one process) on loopback, with everything it writes in DIR.
# It becomes the Java process: kill that to stop it. Java 17 and Maven are needed.
set -e
here=$(cd "$(dirname "$0")" && pwd)
dir=$1 zk=$2 master=$3 region=$4
rm -rf "$dir/hbase" "$dir/zk" "$dir/tmp"
mkdir -p "$dir/conf" "$dir/tmp"
lib=${HBASE_LIB:-$dir/lib}
[ -d "$lib" ] || mvn -q -B ${MAVEN_OPTIONS:-} -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$lib" >"$dir/maven.log" 2>&1
property() { echo "<property><name>$1</name><value>$2</value></property>"; }
{
	echo '<configuration>'
	property hbase.cluster.distributed false
	property hbase.rootdir "file://$dir/hbase"
	property hbase.tmp.dir "$dir/tmp"
	property hbase.zookeeper.property.dataDir "$dir/zk"
	property hbase.zookeeper.property.clientPort "$zk"
	property hbase.zookeeper.quorum 127.0.0.1
	# A machine that stands still for a minute is no reason to give up.
	property hbase.zookeeper.property.tickTime 60000
	property zookeeper.session.timeout 600000
	property hbase.unsafe.stream.capability.enforce false
	# Bigtable's largest cells.
	property hbase.server.keyvalue.maxsize 104857700
	property hbase.master.port "$master"
	property hbase.regionserver.port "$region"
	property hbase.master.info.port -1
	property hbase.regionserver.info.port -1
	property hbase.master.hostname localhost
	property hbase.regionserver.hostname localhost
	property hbase.master.ipc.address 127.0.0.1
	property hbase.regionserver.ipc.address 127.0.0.1
	property hbase.localcluster.assign.random.ports false
	property hbase.procedure.remote.dispatcher.delay.msec 10
	property hbase.regionserver.handler.count 10
	echo '</configuration>'
} >"$dir/conf/hbase-site.xml"
cd "$dir"
exec java -Xmx1g -XX:+UseSerialGC -XX:TieredStopAtLevel=4 \
	-Dorg.apache.hbase.thirdparty.io.netty.tryReflectionSetAccessible=true --add-modules jdk.unsupported \
	-Dorg.slf4j.simpleLogger.defaultLogLevel=warn \
	--add-opens java.base/java.io=ALL-UNNAMED --add-opens java.base/java.nio=ALL-UNNAMED --add-opens java.base/sun.nio.ch=ALL-UNNAMED \
	--add-opens java.base/java.lang=ALL-UNNAMED --add-opens java.base/jdk.internal.ref=ALL-UNNAMED --add-opens java.base/java.lang.reflect=ALL-UNNAMED \
	--add-opens java.base/java.util=ALL-UNNAMED --add-opens java.base/java.util.concurrent=ALL-UNNAMED --add-opens java.base/java.net=ALL-UNNAMED \
	--add-exports java.base/jdk.internal.misc=ALL-UNNAMED --add-exports java.security.jgss/sun.security.krb5=ALL-UNNAMED \
	--add-exports java.base/sun.net.dns=ALL-UNNAMED --add-exports java.base/sun.net.util=ALL-UNNAMED \
	-cp "$dir/conf:$lib/*" org.apache.hadoop.hbase.master.HMaster start
