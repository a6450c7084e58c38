#!/bin/sh
set -e
if [ "$1" = purge ] && [ -d /var/lib/trestle ]; then
	echo "The data are still in /var/lib/trestle."
fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
