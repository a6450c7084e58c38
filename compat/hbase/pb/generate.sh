#!/bin/sh
# Regenerates the Go code. Needs protoc >= 3.21 and protoc-gen-go v1.36.12 on the path.
set -e
cd "$(dirname "$0")/../../.."
protoc -I . --go_out=. --go_opt=paths=source_relative compat/hbase/pb/*.proto
