#!/usr/bin/env bash
# Walk a newcomer's ten minutes in an empty folder, with nothing but what docs/start.md says, and time each step:
#
#     scripts/newcomer.sh [REPOSITORY]     a path or an address that git can clone; without it the last commit here
#
# Commands and programs are cut out of the page, so a page that does not work stops here. It is used by hand: it
# installs 1.2 GB. The folder stays for a look; its name is printed at the end.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
case ${1:-} in "") address=file://$here ;; *://*) address=$1 ;; *) address=file://$(cd "$1" && pwd) ;; esac
folder=$(mktemp -d -t toolgym-newcomer-XXXXXX)
log=$folder/log.txt
times=$folder/times.txt
page=docs/start.md

# Block number N of a language in the page, counted from 1: `block LANGUAGE N`.
block() {
  awk -v fence="\`\`\`$1" -v wanted="$2" '
    $0 == fence { count += 1; inside = count == wanted; next }
    /^```/ { inside = 0 }
    inside { print }' "$page"
}

# Run a step and time it: `step NAME COMMAND...`. The output goes to the log; a step that fails shows its end.
step() {
  local name=$1 started=$EPOCHREALTIME
  shift
  if ! { echo "== $name" && "$@"; } >>"$log" 2>&1 </dev/null; then
    tail -n 30 "$log" >&2
    echo "this step failed: $name (all of it is in $log)" >&2
    exit 1
  fi
  awk -v name="$name" -v from="$started" -v to="$EPOCHREALTIME" \
    'BEGIN { printf "%7.1f s  %s\n", to - from, name }' | tee -a "$times"
}

# Run shell commands of the page as they stand there.
commands() { bash -euxo pipefail -c "$1"; }

# Open a viewer in a terminal of its own, look for some seconds, and leave it with its key.
look() { commands "(sleep 8; printf q) | timeout 60 script -qec '$1' /dev/null | tail -c 2000"; }

is_page() {
  grep -q "</html>" "$1" || { echo "$1 is not there, or is no whole page"; return 1; }
}

tool() {
  block python 1 >shop.py
  commands "$(block bash 3)"
}

env_of_ones_own() {
  block python 2 >>shop.py
  block python 3 >play.py
  .venv/bin/python play.py
  commands "$(block bash 4)"
}

look_at_demo() {
  look "$(block bash 2)"
  is_page demo-out/run.html
}

look_at_own() {
  look "$(block bash 5 | grep ' view ')"
  .venv/bin/toolgym view shop-run --html shop.html
  is_page shop.html
}

cd "$folder"
step "clone" git clone --quiet --depth 1 "$address" toolgym
cd toolgym
step "1. play: make demo, which installs all" commands "$(block bash 1)"
step "2. look at its run, in the terminal and as a page" look_at_demo
step "3. a tool" tool
step "4. an env, played by hand and checked" env_of_ones_own
step "5. a run of it" commands "$(block bash 5 | grep ' rollout ')"
step "   look at that run" look_at_own
awk '{ sum += $1 } END { printf "%7.1f s  in all\n", sum }' "$times"
echo "what was made is in $folder; remove it afterwards"
