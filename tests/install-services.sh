#!/bin/sh
# Installs the servers, the browser and the compiler that tests start by themselves: in CI, as root, on
# Debian or Ubuntu, and only those that are missing. Anywhere else it does nothing: tests that miss a
# server are skipped with their reason.
set -eu
[ "${CI:-}" = true ] || exit 0

wanted=""
want() { # want PACKAGE COMMAND-OR-PATH...
    package=$1
    shift
    for candidate in "$@"; do
        command -v "$candidate" >/dev/null 2>&1 && return 0
        for path in $candidate; do [ -e "$path" ] && return 0; done
    done
    wanted="$wanted $package"
}
want postgresql '/usr/lib/postgresql/*/bin/postgres'
want mariadb-server mariadbd /usr/sbin/mariadbd
want redis-server redis-server
want pgbouncer pgbouncer /usr/sbin/pgbouncer
want chromium chromium chromium-browser google-chrome
want gcc gcc cc
want libc6-dev /usr/include/dlfcn.h
want pkg-config pkg-config
want libmariadb-dev /usr/include/mariadb/mysql.h

[ -n "$wanted" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "Missing for the tests:$wanted. Install them: this script can do so only as root with apt-get." >&2
    exit 1
fi
echo "Installing for the tests:$wanted"
export DEBIAN_FRONTEND=noninteractive
# A packaged server must not start by itself: tests start their own, on their own ports.
policy=/usr/sbin/policy-rc.d
made=""
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    made=yes
fi
trap '[ -z "$made" ] || rm -f "$policy"' EXIT
apt-get update -qq
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $wanted >/dev/null
