#!/bin/sh
set -e
if ! getent passwd trestle >/dev/null; then
	nologin=/usr/sbin/nologin
	[ -x $nologin ] || nologin=/sbin/nologin
	useradd --system --user-group --home-dir /var/lib/trestle --no-create-home --shell $nologin trestle
fi
