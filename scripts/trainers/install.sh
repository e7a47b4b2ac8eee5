#!/usr/bin/env bash
# Make a virtual environment with a trainer's own packages: install.sh NAME FOLDER
#
# NAME.txt lists every package with its version, so pip resolves nothing. Its first line says for which Python. A list
# for the Python of the development environment ($VENV, .venv) says what the new one has besides, or in another version,
# and on a line "# without NAME ..." what it has not.
# A list for another Python is whole. Ends with 3, and a line that says why, where this machine cannot have it.
set -euo pipefail
usage="usage: install.sh NAME FOLDER"
name=${1:?$usage} folder=${2:?$usage}
here=$(cd "$(dirname "$0")" && pwd)
list=$here/$name.txt
dev=$(cd "${VENV:-$here/../../.venv}" && pwd)

cannot() { echo "$1" >&2; exit 3; }

purelib() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# The interpreter of a version: as a program, or as pyenv keeps it (whose programs may fail where they are not chosen).
python_of() {
  local one
  for one in "$dev/bin/python" "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    "$one" -c "import sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null && echo "$one" && return
  done
  return 1
}

[ -f "$list" ] || { echo "there is no list $list" >&2; exit 2; }
version=$(sed -n '1s/^# python \(3\.[0-9]*\)$/\1/p' "$list")
[ -n "$version" ] || { echo "$list: the first line must be '# python 3.11', or another version" >&2; exit 2; }
python=$(python_of "$version") || cannot "there is no Python $version"

rm -rf "$folder"
"$python" -m venv --without-pip "$folder"
site=$(purelib "$folder/bin/python")
if [ "$python" = "$dev/bin/python" ]; then
  # Links, which take no room, and copies on another disk. No path to them: the sandbox offers a program its prefix only.
  cp -rl "$(purelib "$python")/." "$site" 2>/dev/null || cp -a "$(purelib "$python")/." "$site"
  for package in $(sed -n 's/^# without //p' "$list"); do
    rm -rf "${site:?}/$package" "$site/$package"-*.dist-info
  done
else
  cp -r "$(purelib "$dev/bin/python")"/*toolgym* "$site"  # the editable install, which any Python can use
fi
# Compiled when imported: most modules never are.
options=()
grep -q '^# any python$' "$list" && options=(--ignore-requires-python)
"$dev/bin/python" -m pip --quiet --disable-pip-version-check --python "$folder/bin/python" \
  install --no-deps --no-compile "${options[@]}" -r "$list" >"$folder/install.log" 2>&1 ||
  cannot "$(grep -m1 '^ERROR' "$folder/install.log" || tail -n 1 "$folder/install.log")"
# The command, as pip would write it.
printf '#!%s\nimport sys\n\nfrom toolgym.__main__ import main\n\nsys.exit(main())\n' "$(cd "$folder" && pwd)/bin/python" \
  >"$folder/bin/toolgym"
chmod +x "$folder/bin/toolgym"
"$folder/bin/python" -c 'import toolgym' || { echo "toolgym cannot be imported in $folder" >&2; exit 1; }
cp "$list" "$folder/installed.txt"
