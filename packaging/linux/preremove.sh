#!/bin/sh
# dpkg calls it with "remove", rpm with the number of versions that stay. What dpkg
# removes can be installed again, and is then enabled as it was.
set -e
[ -d /run/systemd/system ] || exit 0
units="trestle.service trestle-tabletserver.service trestle-master.service trestle-gateway.service"
case "$1" in
remove) systemctl stop $units ;;
0) systemctl disable --now $units ;;
esac
