#!/bin/sh
# dpkg calls it as "configure [VERSION THAT WAS]", rpm with the number of versions
# that are installed. A service that does not start leaves the package installed.
set -e
mkdir -p /var/lib/trestle
chown trestle:trestle /var/lib/trestle
chmod 0700 /var/lib/trestle
# Without systemd, as in a container or a chroot, there is no service to start.
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
case "$1 $2" in
"configure ") systemctl enable --now trestle.service || echo "trestle.service did not start: journalctl -u trestle tells why" >&2 ;;
"configure "* | [2-9]*)
	for unit in trestle trestle-tabletserver trestle-master trestle-gateway; do
		# After "remove" dpkg tells of a version too: what is enabled was stopped then.
		do=try-restart
		if [ "$1" = configure ] && systemctl --quiet is-enabled $unit.service; then do=restart; fi
		systemctl $do $unit.service || echo "$unit.service did not start: journalctl -u $unit tells why" >&2
	done
	;;
*) echo "To start Trestle now and at each boot: systemctl enable --now trestle" ;;
esac
