#!/bin/sh
# dpkg calls it as "configure [VERSION THAT WAS]", rpm with the number of versions
# that are installed.
set -e
mkdir -p /var/lib/trestle
chown trestle:trestle /var/lib/trestle
chmod 0700 /var/lib/trestle
# Without systemd, as in a container or a chroot, there is no service to start.
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
case "$1 $2" in
"configure ") systemctl enable --now trestle.service || echo "trestle.service did not start: journalctl -u trestle tells why" >&2 ;;
"configure "* | [2-9]*) systemctl try-restart trestle.service trestle-tabletserver.service trestle-master.service trestle-gateway.service ;;
*) echo "To start Trestle now and at each boot: systemctl enable --now trestle" ;;
esac
