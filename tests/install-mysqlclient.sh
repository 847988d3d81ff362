#!/bin/sh
# Builds the mysqlclient driver into the given Python where its C library is installed. It has no wheels
# for Linux; without it the tests that use it are skipped with their reason.
set -eu
python=$1
"$python" -c 'import MySQLdb' 2>/dev/null && exit 0
if command -v pkg-config >/dev/null 2>&1 && command -v cc >/dev/null 2>&1 &&
    { pkg-config --exists libmariadb || pkg-config --exists mysqlclient || pkg-config --exists mariadb; }; then
    "$python" -m pip install --quiet 'mysqlclient>=2.2' ||
        { [ "${CI:-}" != true ] || exit 1; }
fi
