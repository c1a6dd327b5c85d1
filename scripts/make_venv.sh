#!/usr/bin/env bash
# Makes or refreshes a virtual environment with this package in it.
#   scripts/make_venv.sh FOLDER [EXTRA]      e.g. scripts/make_venv.sh .venv dev
# Does nothing when FOLDER was made from the present pyproject.toml. PYTHON=... chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:?usage: scripts/make_venv.sh FOLDER [EXTRA]}
extra=${2:-}

# A name on the PATH can be a shim of a version manager that only complains: run it to know.
usable() {
  "$1" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
    >/dev/null 2>&1
}
find_python() {
  local name path
  if [ -n "${PYTHON:-}" ]; then
    usable "$PYTHON" && echo "$PYTHON" && return
    echo "PYTHON=$PYTHON is not a working Python 3.11 to 3.13 with the venv module" >&2
    return 1
  fi
  for name in python3.12 python3.11 python3.13 python3 python; do
    while read -r path; do
      usable "$path" && echo "$path" && return
    done < <(type -ap "$name")
  done
  echo "no working Python 3.11 to 3.13 with the venv module on the PATH; install one" \
    "(Debian, Ubuntu: apt-get install python3-venv) or name it: PYTHON=/path/to/python $0 $*" >&2
  return 1
}

# The place counts too: an editable install points at this checkout.
wanted=$( (pwd; cat pyproject.toml) | cksum)
stamp="$folder/.installed${extra:+-$extra}"
if [ -x "$folder/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
  exit 0
fi
if ! usable "$folder/bin/python"; then
  python=$(find_python)
  echo "making $folder with $("$python" --version) ($python)"
  "$python" -m venv --clear "$folder"
fi
echo "installing jaxrl_agents${extra:+[$extra]} into $folder (about 2 GB, minutes the first time)"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check -e ".${extra:+[$extra]}"
echo "$wanted" >"$folder/.installed"
echo "$wanted" >"$stamp"
