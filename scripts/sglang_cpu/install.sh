#!/usr/bin/env bash
# Make a virtual environment with the real SGLang for a CPU: install.sh FOLDER [PYTHON]
set -euo pipefail
venv=${1:?usage: install.sh FOLDER [PYTHON]}
python=${2:-python3}
here=$(cd "$(dirname "$0")" && pwd)
"$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
# First and pinned: SGLang asks for a CUDA build of torch, which brings several gigabytes.
"${pip[@]}" "${TORCH:-torch==2.13.0}" -c "$here/constraints.txt"
"${pip[@]}" -c "$here/constraints.txt" -r "$here/requirements.txt"
"${pip[@]}" --no-deps -r "$here/no-deps.txt"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp -r "$here/site/." "$site/"
echo 'import sglang_cpu_startup' > "$site/sglang_cpu_startup.pth"
# This library, for SGLang in the same process. Its dependencies are in requirements.txt.
"${pip[@]}" --no-deps -e "$here/../.."
"$venv/bin/python" -c 'import sglang.srt.entrypoints.engine, sglang_router, toolgym.rollout.engines' 2>/dev/null ||
  { echo "the environment in $venv does not work: remove it and try again" >&2; exit 1; }
