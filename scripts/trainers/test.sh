#!/usr/bin/env bash
# Run a trainer's contract tests with its own packages, which are installed if they are not: test.sh NAME
#
# The tests are those of the adapter NAME and what a line "# tests PATH ..." of NAME.txt names. None of them may be
# skipped. Where the packages cannot be had, that is said and nothing is tested, unless a line of NAME.txt is "# required".
set -euo pipefail
name=${1:?usage: test.sh NAME}
cd "$(dirname "$0")/../.."
list=scripts/trainers/$name.txt folder=.trainers/$name module=${name//-/_}

if ! cmp --silent "$list" "$folder/installed.txt"; then
  code=0
  said=$(scripts/trainers/install.sh "$name" "$folder" 2>&1) || code=$?
  if [ $code != 0 ]; then
    echo "$name is not tested, since it cannot be installed: $said"
    if [ $code = 3 ] && ! grep -q '^# required$' "$list"; then exit 0; fi
    exit 1
  fi
fi
shopt -s nullglob
tests=(tests/rollout/adapters/test_"$module"*.py tests/rollout/adapters/"$module"*/)
read -r -a more <<<"$(sed -n 's/^# tests //p' "$list" | tr '\n' ' ')"
tests+=("${more[@]}")
[ ${#tests[@]} -gt 0 ] || { echo "$name: there are no tests" >&2; exit 1; }
run() {
  TOOLGYM_NO_SKIPS=1 timeout --kill-after=10 900 \
    "$folder/bin/python" -m pytest -q -o cache_dir=".pytest_cache/$name" -m "not sglang" "$@"
}
code=0
run "${tests[@]}" || code=$?
[ $code = 1 ] || exit $code
retried=$("$folder/bin/python" -c 'import json, sys; print(len(json.load(open(sys.argv[1]))))' \
  ".pytest_cache/$name/v/cache/lastfailed")
echo "$retried $name" >>"${RETRIED_FILE:-/dev/null}"
echo "== $name: what failed runs once more: $retried tests =="
run "${tests[@]}" --last-failed --last-failed-no-failures none
