#!/usr/bin/env bash
# Run a list of tests, then once more, alone, those of them that failed: tests.sh PYTHON LIST PYTEST_ARGUMENT...
#
# Many tests start processes and measure time, and on a machine with other work one of them may be late. A test that
# also fails alone fails the list. One that then passes is in the output of the first run: mend it, it is not correct.
# The number of tests that ran twice is printed, and added as a line to the file RETRIED_FILE, if that is set.
# No test runs longer than TEST_SECONDS; one that hangs fails, with the stack of each thread.
set -euo pipefail
usage="usage: tests.sh PYTHON LIST PYTEST_ARGUMENT..."
python=${1:?$usage} list=${2:?$usage}
shift 2
# Each list has a cache, since lists run side by side and pytest keeps in it which tests failed.
pytest() { "$python" -m pytest --timeout "${TEST_SECONDS:-600}" -o cache_dir=".pytest_cache/$list" "$@"; }

code=0
pytest "$@" || code=$?
[ $code = 1 ] || exit $code # nothing failed, or pytest was interrupted or used wrongly
retried=$("$python" -c 'import json, sys; print(len(json.load(open(sys.argv[1]))))' \
  ".pytest_cache/$list/v/cache/lastfailed")
echo "$retried $list" >>"${RETRIED_FILE:-/dev/null}"
echo "== $list: what failed runs once more, alone: $retried tests =="
pytest "$@" --numprocesses 0 --last-failed --last-failed-no-failures none
