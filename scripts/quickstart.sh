#!/usr/bin/env bash
# From a fresh checkout to a trained search agent on a CPU: makes an environment, then runs
# scripts/quickstart.py with the flags given here (--help lists them).
# JAXRL_VENV=FOLDER keeps the environment elsewhere than in .venv; PYTHON=... chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${JAXRL_VENV:-$PWD/.venv}
scripts/make_venv.sh "$venv"
# Huge pages, read before Python starts: writing to fresh memory is what limits XLA on a CPU.
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}
exec "$venv/bin/python" scripts/quickstart.py --install_s="$SECONDS" "$@"
