#!/bin/sh
set -e
[ -d /run/systemd/system ] || exit 0
case "$1" in
remove | 0) systemctl disable --now trestle.service trestle-tabletserver.service trestle-master.service trestle-gateway.service ;;
esac
