#!/usr/bin/env bash
# Walk a newcomer's path in an empty folder, with nothing but what README.md and docs/ say, and time each step:
#
#     scripts/newcomer.sh [REPOSITORY]     a path or an address that git can clone; by default this checkout's last commit
#
# Programs and commands are cut out of the pages, so a page that does not work stops here. It is used by hand: it installs
# 1.2 GB. The folder is left for a look; its name is printed at the end.
set -euo pipefail
repository=${1:-$(cd "$(dirname "$0")/.." && pwd)}
case $repository in *://*) address=$repository ;; *) address=file://$(cd "$repository" && pwd) ;; esac
folder=$(mktemp -d -t toolgym-newcomer-XXXXXX)
log=$folder/log.txt
times=$folder/times.txt
cd "$folder"

# The block number N of a language in a page, counted from 1: `block PAGE LANGUAGE N`.
block() {
  awk -v fence="\`\`\`$2" -v wanted="$3" '
    $0 == fence { count += 1; inside = count == wanted; next }
    /^```/ { inside = 0 }
    inside { print }' "$1"
}

# Run a step and time it: `step NAME COMMAND...`. Its output goes to the log; a step that fails shows the log's end.
step() {
  local name=$1 started=$(date +%s.%N)
  shift
  printf '%s ...\n' "$name"
  if ! { echo "== $name" && "$@"; } >>"$log" 2>&1 </dev/null; then
    tail -n 30 "$log" >&2
    echo "this step failed: $name (all of it: $log)" >&2
    exit 1
  fi
  awk -v name="$name" -v from="$started" -v to="$(date +%s.%N)" 'BEGIN { printf "%7.1f s  %s\n", to - from, name }' |
    tee -a "$times"
}

# Fail unless a file is there and holds a text: `holds FILE TEXT`.
holds() {
  [ -s "$1" ] && grep -q -- "$2" "$1" || { echo "$1 is missing, or lacks $2"; return 1; }
}

own_tool() {
  block docs/tools.md python 1 >own_tool.py
  echo 'print(convert(3.0), "|", env)' >>own_tool.py
  .venv/bin/python own_tool.py
}

own_env() {  # the page says: run these in the folder examples
  (cd examples && bash -euo pipefail -c "$(block ../docs/own_env.md bash 1)")
}

own_run() {
  (cd examples && bash -euo pipefail -c "$(block ../docs/own_env.md bash 2)")
}

open_demo() {
  .venv/bin/toolgym view demo-out --html demo.html
  holds demo.html "</html>"
}

open_own_run() {
  .venv/bin/toolgym view examples/sums-out --html own.html
  holds own.html "</html>"
}

step "clone" git clone --quiet --depth 1 "$address" toolgym
cd toolgym
step "make demo: install, and roll out 128 episodes" bash -euo pipefail -c "$(block README.md bash 1 | grep '^make demo')"
step "open the demo's run as a page" open_demo
step "a tool of one's own (docs/tools.md)" own_tool
step "an env of one's own, checked (docs/own_env.md)" own_env
step "a run of it (docs/own_env.md)" own_run
step "open that run as a page" open_own_run

awk '{ sum += $1 } END { printf "%7.1f s  in all\n", sum }' "$times"
echo "look at $folder/toolgym/demo.html and $folder/toolgym/own.html; remove $folder afterwards"
