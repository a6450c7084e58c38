#!/bin/bash
# Usage: build.sh ARCH PROGRAM OUT WORK
#
# Builds the two images of an architecture into OUT, as archives that `docker
# load` takes. build.sh of packaging calls it and sets VERSION, REVISION and
# SOURCE_DATE_EPOCH. No step runs a program of the image, so any machine builds
# for any architecture.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
arch=$1 program=$2 out=$3 work=$4
repository=${REPOSITORY:-ghcr.io/trestledb/trestle}

# A shell for the image that stands in for gcloud, which is started by one and
# is looked at through one. From Debian, by its hash.
busybox=1.37.0-6+b9
case $arch in
amd64) sum=598a3fd92bdafc34cd81196b2952ad36e910e47a4ecf162f8ce5e8e262598e53 ;;
arm64) sum=c833be48abfa16bc19c4966ec93e289ff1ce5d2f1476cad3a57bd105378cd15c ;;
esac
cache=${XDG_CACHE_HOME:-$HOME/.cache}/trestle-packaging
deb=$cache/busybox-static_${busybox}_$arch.deb
if ! echo "$sum  $deb" | sha256sum --status -c 2>/dev/null; then
	mkdir -p "$cache"
	for from in https://deb.debian.org/debian http://deb.debian.org/debian https://snapshot.debian.org/archive/debian/20261101T000000Z; do
		curl -fsSL --retry 2 -o "$deb.part" "$from/pool/main/b/busybox/$(basename "$deb")" && break
	done
	echo "$sum  $deb.part" | sha256sum --quiet -c
	mv "$deb.part" "$deb"
fi

mkdir -p "$work/root/usr/bin" "$work/root/etc" "$work/data"
cp "$program" "$work/root/usr/bin/trestle"
echo 'trestle:x:65532:65532:Trestle:/data:/sbin/nologin' >"$work/root/etc/passwd"
echo 'trestle:x:65532:' >"$work/root/etc/group"
install -d -m 1777 "$work/root/tmp"

mkdir -p "$work/shell/bin" "$work/shell/usr/bin" "$work/shell/usr/share/doc/busybox-static"
(cd "$work" && ar p "$deb" data.tar.xz | tar -xJf - ./usr/bin/busybox ./usr/share/doc/busybox-static/copyright)
mv "$work/usr/bin/busybox" "$work/shell/bin/busybox"
mv "$work/usr/share/doc/busybox-static/copyright" "$work/shell/usr/share/doc/busybox-static/"
for applet in sh ash cat awk grep nc ls ps kill sleep env id wget head tail sed tr cut wc ping hostname netstat vi; do
	ln -s busybox "$work/shell/bin/$applet"
done
ln -s trestle "$work/shell/usr/bin/gcloud"
find "$work/root" "$work/shell" "$work/data" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

# The format has to be Docker's: OCI's has no place for a health check.
image() { # image TARGET TAG FILE
	# An own storage without any driver's needs, so that no daemon and no
	# privilege is asked for.
	local b=(buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs)
	"${b[@]}" bud --quiet --isolation chroot --format docker --platform "linux/$arch" --target "$1" --timestamp "$SOURCE_DATE_EPOCH" --identity-label=false \
		--label "org.opencontainers.image.version=$VERSION" --label "org.opencontainers.image.revision=$REVISION" \
		-f "$here/Containerfile" -t "$2" "$work" >/dev/null
	rm -f "$3"
	rm -rf "$work/made"
	mkdir -p "$work/made/new"
	"${b[@]}" push --quiet --format v2s2 "$2" "docker-archive:$work/made/image.tar:$2"
	"${b[@]}" rmi --all --force >/dev/null
	# The names that buildah has given to the container of the build are all that
	# differs from one build to the next. A configuration is named by its hash.
	tar -C "$work/made" -xf "$work/made/image.tar"
	local config layers
	config=$(jq -r '.[0].Config' "$work/made/manifest.json")
	layers=$(jq -r '.[0].Layers[]' "$work/made/manifest.json")
	jq -cS 'del(.container) | .config.Hostname = "" | if .container_config then .container_config.Hostname = "" else . end' "$work/made/$config" >"$work/made/config"
	config=$(sha256sum "$work/made/config" | cut -d' ' -f1).json
	mv "$work/made/config" "$work/made/new/$config"
	(cd "$work/made" && cp $layers new/)
	jq -cS --arg config "$config" '.[0].Config = $config' "$work/made/manifest.json" >"$work/made/new/manifest.json"
	tar --sort=name --format=gnu --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$SOURCE_DATE_EPOCH" -C "$work/made/new" -cf "$3" $(ls "$work/made/new")
	rm -rf "$work/made"
}
image server "$repository:$VERSION" "$out/trestle_${VERSION}_linux_${arch}_image.tar"
image emulator "$repository:$VERSION-emulator" "$out/trestle_${VERSION}_linux_${arch}_emulator_image.tar"
rm -rf "$work/storage" "$work/run"
