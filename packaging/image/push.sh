#!/bin/bash
# Usage: push.sh DIST REPOSITORY USER <<<PASSWORD
#
# Pushes the images of a release, for each tag a list of both architectures.
# `latest` and `emulator` are of the newest release that is no candidate.
set -euo pipefail
dist=$1 repository=$2 user=$3
version=$(tr ' ' '\n' <"$dist/build-info.txt" | sed -n 's/^VERSION=//p')
buildah login --username "$user" --password-stdin "${repository%%/*}"
for kind in "" emulator; do
	tag=$version${kind:+-$kind} newest=${kind:-latest}
	list=trestle-$tag
	buildah manifest create "$list"
	for arch in amd64 arm64; do
		buildah manifest add "$list" "docker-archive:$dist/trestle_${version}_linux_${arch}${kind:+_$kind}_image.tar"
	done
	buildah manifest push --all --format v2s2 "$list" "docker://$repository:$tag"
	case $version in
	*-*) ;;
	*) buildah manifest push --all --format v2s2 "$list" "docker://$repository:$newest" ;;
	esac
done
