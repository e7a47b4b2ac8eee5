#!/usr/bin/env bash
# Make a virtual environment with the real verl for a CPU: install.sh FOLDER [PYTHON]
set -euo pipefail
venv=${1:?usage: install.sh FOLDER [PYTHON]}
python=${2:-python3}
here=$(cd "$(dirname "$0")" && pwd)
"$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
# First and pinned: another package's looser wish would bring several gigabytes of CUDA.
"${pip[@]}" "${TORCH:-torch==2.13.0}" -c "$here/constraints.txt"
"${pip[@]}" -c "$here/constraints.txt" -r "$here/requirements.txt"
"${pip[@]}" -c "$here/constraints.txt" -e "$here/../..[rollout]"
"$venv/bin/python" -c 'import toolgym.rollout.adapters.verl.agent_loop' 2>/dev/null ||
  { echo "the environment in $venv does not work: remove it and try again" >&2; exit 1; }
