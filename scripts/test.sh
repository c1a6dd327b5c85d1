#!/usr/bin/env bash
# All checks, on a fresh machine or a used one: environment, lint, format, types, tests.
# Runs every stage even after a failure, prints the time of each, and fails if any did.
#   scripts/test.sh          everything, about half an hour on two cores; as root, also the tests of
#                            sandboxes as an ordinary user
#   scripts/test.sh --fast   lint, types and the tests that are not marked slow, about 2 minutes
# JAXRL_VENV=FOLDER keeps the environment elsewhere than in .venv-test. Other flags go to pytest.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${JAXRL_VENV:-$PWD/.venv-test}
export JAX_PLATFORMS=cpu
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$venv/jax_cache}
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.2
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}

chosen=()
if [ "${1:-}" = --fast ]; then
  shift
  chosen=(-m "not slow")
fi

failed=()
stage() {
  local name=$1 start=$SECONDS verdict=ok
  shift
  echo "== $name"
  "$@" || { verdict=FAILED; failed+=("$name"); }
  echo "== $name: $verdict, $((SECONDS - start)) s"
  [ "$verdict" = ok ]
}

stage environment scripts/make_venv.sh "$venv" dev || exit 1
stage lint "$venv/bin/ruff" check .
stage format "$venv/bin/ruff" format --check .
stage types "$venv/bin/mypy"
# Compiling takes one core: two processes, each a file of tests at a time, in order: else those of
# few tests, which take longest, come last and one process waits for the other. A process that
# crashes ends the run: pytest-xdist would wait forever where it was in the last test of a file.
stage tests "$venv/bin/pytest" -q --durations=15 -n 2 --dist=loadfile --no-loadscope-reorder --max-worker-restart=0 \
  ${chosen[@]+"${chosen[@]}"} "$@"
# What holds back a policy differs for root. The right to read everything is kept, since the
# interpreter may lie in a home folder.
as_user=(setpriv --reuid=65534 --regid=65534 --clear-groups
  --inh-caps=+dac_read_search --ambient-caps=+dac_read_search)
if [ "$(id -u)" = 0 ] && [ ${#chosen[@]} = 0 ] && [ $# = 0 ]; then
  if "${as_user[@]}" true 2>/dev/null; then
    home=$(mktemp -d)
    chown 65534:65534 "$home"
    stage "sandboxes as an ordinary user" "${as_user[@]}" env HOME="$home" TMPDIR="$home" \
      JAXRL_CACHE="$home/cache" JAX_COMPILATION_CACHE_DIR="$home/jax" \
      "$venv/bin/python" -m pytest -q -p no:cacheprovider -n 2 --dist=loadfile tests/hostile tests/sandbox
    rm -rf "$home"
  else
    echo "== sandboxes as an ordinary user: left out, since setpriv cannot become one here"
  fi
fi
echo "== everything: $SECONDS s"
if [ ${#failed[@]} -gt 0 ]; then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
