#!/bin/bash
# Usage: build.sh DIR
#
# Builds what a release consists of into DIR, from the source that this script
# is in: archives, deb, rpm, images, Helm chart, SBOMs, checksums. The same
# source and Go give the same bytes. What cannot be built for want of a tool is
# named at the end; with STRICT=1 that is a failure.
#
# VERSION, REVISION and SOURCE_DATE_EPOCH are of the last commit unless set;
# ARCHS names the architectures of Linux, OTHERS the other systems.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
cd "$source"
out=${1:?directory}
mkdir -p "$out"
out=$(cd "$out" && pwd)
here=packaging
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

git() { command git -C "$source" "$@" 2>/dev/null; }
VERSION=${VERSION:-$(git describe --tags --always --dirty || echo unknown)}
REVISION=${REVISION:-$(git rev-parse HEAD || echo unknown)}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct || echo 0)}
# Packages order by version: what has no tag comes before every release.
version=${VERSION#v}
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+ ]] || version=0.0.0-dev.g$version
export VERSION=$version REVISION TZ=UTC LC_ALL=C
ARCHS=${ARCHS-amd64 arm64}
OTHERS=${OTHERS-darwin/amd64 darwin/arm64 windows/amd64}
GO=${GO:-go}
TOOLS=${TOOLS:-$source/bin/tools}

umask 022
left=()
have() {
	local tool
	for tool in "${@:2}"; do
		if ! command -v "$tool" >/dev/null; then
			left+=("$1: $tool is not installed")
			return 1
		fi
	done
}
stamp() { find "$@" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +; }
pack() { # pack DIR ENTRY FILE: an entry of DIR, as a tar whose bytes depend on nothing else
	tar --sort=name --format=gnu --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$SOURCE_DATE_EPOCH" -C "$1" -cf - "$2" | gzip -9n >"$3"
}

echo "== trestle $VERSION ($REVISION)"
# With this, and the same Go, it is built again: env $(cat build-info.txt) build.sh DIR
echo "VERSION=$VERSION REVISION=$REVISION SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH" >"$out/build-info.txt"
info=github.com/trestledb/trestle/cmd/trestle/internal/ops
build() { # build SYSTEM/ARCH FILE
	GOFLAGS='' CGO_ENABLED=0 GOOS=${1%/*} GOARCH=${1#*/} "$GO" build -trimpath -buildvcs=false \
		-ldflags "-s -w -X $info.stampedVersion=$VERSION -X $info.stampedRevision=$REVISION" -o "$2" ./cmd/trestle
}

# An SBOM in CycloneDX's form says which modules are in a program, as the program
# itself does (go version -m).
sbom() { # sbom PROGRAM FILE
	"$GO" version -m "$1" | jq -Rn --arg version "$VERSION" --arg sum "$(sha256sum "$1" | cut -d' ' -f1)" '
		[inputs | split("\t")] as $lines
		| ($lines[0][0] | sub(".*: "; "")) as $go
		| def library(path; version): {type: "library", "bom-ref": "pkg:golang/\(path)@\(version)", name: path, version: version, purl: "pkg:golang/\(path)@\(version)"};
		{bomFormat: "CycloneDX", specVersion: "1.6", version: 1,
		 metadata: {component: {type: "application", "bom-ref": "trestle", name: "github.com/trestledb/trestle", version: $version,
			licenses: [{license: {id: "Apache-2.0"}}], hashes: [{alg: "SHA-256", content: $sum}]}},
		 components: ([library("stdlib"; $go | ltrimstr("go"))] + [$lines[] | select(.[1] == "dep") | library(.[2]; .[3])])}' >"$2"
}

# A program for this machine writes the manual.
host=$("$GO" env GOHOSTOS)/$("$GO" env GOHOSTARCH)
build "$host" "$work/host"
"$work/host" manual "$work/manual"
mkdir "$work/dashboards"
cp $here/dashboards/*.json $here/dashboards/alerts.yaml "$work/dashboards/"

for target in $(printf 'linux/%s ' $ARCHS) $OTHERS; do
	name=trestle_${VERSION}_${target/\//_}
	echo "== $name"
	exe=trestle
	[ "${target%/*}" != windows ] || exe=trestle.exe
	dir=$work/archive/${target/\//_}/trestle_$VERSION
	mkdir -p "$dir/completion" "$dir/man"
	if [ "$target" = "$host" ]; then cp "$work/host" "$dir/$exe"; else build "$target" "$dir/$exe"; fi
	cp LICENSE README.md CHANGELOG.md "$dir/"
	cp -R "$work/dashboards" "$dir/"
	cp "$work"/manual/*.1 "$dir/man/"
	cp "$work"/manual/trestle.{bash,zsh,fish} "$dir/completion/"
	if have SBOMs jq; then sbom "$dir/$exe" "$out/$name.sbom.json"; fi
	stamp "$dir"
	if [ "${target%/*}" = windows ]; then
		if have "archive for Windows" zip; then
			rm -f "$out/$name.zip"
			(cd "$dir/.." && find . -type f | sort | zip -q -9 -X -@ "$out/$name.zip")
		fi
	else
		pack "$dir/.." "trestle_$VERSION" "$out/$name.tar.gz"
	fi
done

# What deb, rpm and archives of Linux install beside the program.
mkdir -p "$work/root" "$work/units"
for role in serve tabletserver master gateway; do
	case $role in
	serve) unit=trestle state=trestle where= stop=15 does="a server for the Cloud Bigtable API" ;;
	tabletserver) unit=trestle-tabletserver does="a tablet server of a cluster" stop=75 ;;
	master) unit=trestle-master does="a master of a cluster" stop=15 ;;
	gateway) unit=trestle-gateway does="a gateway of a cluster" stop=15 ;;
	esac
	if [ $role != serve ]; then state=$unit where=" --data-dir /var/lib/$unit"; fi
	sed -e "s|@ROLE@|$role|g" -e "s|@STATE@|$state|g" -e "s|@WHERE@|$where|g" -e "s|@STOP@|$stop|g" -e "s|@DOES@|$does|g" \
		$here/linux/unit.in >"$work/units/$unit.service"
done
for page in "$work"/manual/*.1; do gzip -9n <"$page" >"$work/manual/$(basename "$page").gz"; done
gzip -9n <CHANGELOG.md >"$work/changelog.gz"
cat >"$work/changelog.yaml" <<EOF
- semver: $VERSION
  date: $(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
  packager: The Trestle authors <trestledb@users.noreply.github.com>
  deb: {urgency: medium, distributions: [stable]}
  changes: [{note: "Release $VERSION; changelog.gz has what is new."}]
EOF
stamp "$work/units" "$work/manual" "$work/changelog.gz" "$work/dashboards"

for arch in $ARCHS; do
	echo "== deb and rpm for $arch"
	program=$work/archive/linux_$arch/trestle_$VERSION/trestle
	for kind in deb rpm; do
		# nfpm takes the place of variables in some fields only; sed does in all.
		sed -e "s|@WORK@|$work|g" -e "s|@PROGRAM@|$program|g" -e "s|@VERSION@|$VERSION|g" -e "s|@ARCH@|$arch|g" -e "s|@HERE@|$here|g" \
			-e "$([ $kind = rpm ] || echo '/^license:/d')" $here/linux/nfpm.yaml >"$work/nfpm.yaml"
		"$TOOLS/nfpm" package -f "$work/nfpm.yaml" -p $kind -t "$out/trestle_${VERSION}_linux_$arch.$kind" >/dev/null
	done
done

echo "== Helm chart"
mkdir "$work/chart"
cp -R $here/helm/trestle "$work/chart/"
rm -rf "$work/chart/trestle/ci"
mkdir "$work/chart/trestle/files"
cp "$work"/dashboards/* "$work/chart/trestle/files/"
sed -i -e "s|^version: .*|version: $VERSION|" -e "s|^appVersion: .*|appVersion: \"$VERSION\"|" "$work/chart/trestle/Chart.yaml"
pack "$work/chart" trestle "$out/trestle-chart-$VERSION.tgz"

for kind in compose.yaml compose.cluster.yaml; do
	sed -e "s|:-latest}|:-$VERSION}|" $here/compose/$kind >"$out/$kind"
done

if have images buildah curl ar jq sha256sum; then
	for arch in $ARCHS; do
		echo "== images for $arch, by $(buildah --version)"
		program=$work/archive/linux_$arch/trestle_$VERSION/trestle
		$here/image/build.sh $arch "$program" "$out" "$work/image-$arch"
	done
fi

(cd "$out" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%f\n' | sort | xargs sha256sum >SHA256SUMS)
echo "== in $out"
cat "$out/SHA256SUMS"
for l in "${left[@]}"; do echo "LEFT OUT: $l" >&2; done
[ "${#left[@]}" = 0 ] || [ "${STRICT:-}" != 1 ]
