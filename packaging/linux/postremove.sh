#!/bin/sh
set -e
if [ "$1" = purge ]; then
	for unit in trestle trestle-tabletserver trestle-master trestle-gateway; do
		rm -f /etc/systemd/system/multi-user.target.wants/$unit.service
	done
	if [ -d /var/lib/trestle ]; then echo "The data are still in /var/lib/trestle."; fi
fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
