#!/usr/bin/env bash
# Sets the workspace up from hashed pins and checks it. "./ci.sh help" lists the commands.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

usage() {
  cat <<'TEXT'
./ci.sh             set up, then lint, format check, types and tests
./ci.sh demo …      set up, then run the demo (--yes approves by itself; --data FOLDER puts the data into
                    a folder that has no demo yet, not into a temporary one)
./ci.sh bench …     set up, then measure turns (--rounds N --turns N --sessions N --workers N),
                    or with "bench engine" the engine alone (--steps N --flows N --long-steps N)
./ci.sh test …      set up, then pytest with these arguments
./ci.sh long …      set up, then the long chaos and soak tests
./ci.sh lint        set up, then lint, format check and types
./ci.sh setup       only set up .venv
./ci.sh help        this text

It needs Python 3.11 or newer with pip and venv; PYTHON=/path/to/python chooses one.
TEXT
}

fail() {
  echo "ci.sh: $*" >&2
  exit 1
}

# Prints the interpreter to use: $PYTHON if set, else the first one that is new enough.
find_python() {
  local candidate seen=""
  if [ -n "${PYTHON:-}" ]; then
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
      fail "PYTHON=$PYTHON is not Python 3.11 or newer"
    echo "$PYTHON"
    return
  fi
  for candidate in python3.11 python3 python; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
    seen+=" $candidate ($("$candidate" -V 2>&1 || true))"
  done
  fail "Python 3.11 or newer is missing; found:${seen:- none}. Install it or set PYTHON to one"
}

# stage NAME COMMAND…: runs the command between two lines, the second one with its seconds.
stage() {
  local name=$1 started=$SECONDS
  shift
  echo "== $name" >&2
  if "$@"; then
    echo "== $name: ok, $((SECONDS - started)) s" >&2
  else
    local code=$?
    echo "== $name: failed, $((SECONDS - started)) s" >&2
    exit "$code"
  fi
}

stamp_of() { # PYTHON FILE…: one hash of the interpreter's version and these files
  "$1" -c '
import hashlib, pathlib, sys
digest = hashlib.sha256(sys.version.encode())
for name in sys.argv[1:]:
    digest.update(hashlib.sha256(pathlib.Path(name).read_bytes()).digest())
print(digest.hexdigest())' "${@:2}"
}

has_stamp() { # NAME VALUE
  [ -x .venv/bin/python ] && [ "$(cat ".venv/$1" 2>/dev/null)" = "$2" ]
}

# A new .venv with exactly what the lock names. pip's resolver must not take part: it looks at
# releases newer than the lock, and refuses those that come with an extra.
make_venv() { # PYTHON
  "$1" -c 'import ensurepip, venv' 2>/dev/null || {
    echo "ci.sh: $1 has no venv with pip; install it (Debian, Ubuntu: apt install python3-venv)" >&2
    return 1
  }
  echo "   $(grep -c '==' requirements.lock) packages; this is quiet for a minute or two" >&2
  rm -rf .venv && "$1" -m venv .venv &&
    .venv/bin/python -m pip install --quiet --no-deps --no-compile --require-hashes \
      -r requirements.lock
}

install_workspace() {
  .venv/bin/python -m pip install --quiet --no-deps --no-build-isolation \
    -e src/dex-lite -e src/dex-agents -e src/dex-agents-google-adk &&
    .venv/bin/python -m pip check
}

setup() {
  local python lock workspace
  python=$(find_python)
  lock=$(stamp_of "$python" requirements.lock)
  workspace=$lock-$(stamp_of "$python" src/*/pyproject.toml)
  if ! has_stamp lock-stamp "$lock"; then
    stage "install the locked packages" make_venv "$python"
    echo "$lock" >.venv/lock-stamp
  fi
  if ! has_stamp workspace-stamp "$workspace"; then
    stage "install the workspace" install_workspace
    echo "$workspace" >.venv/workspace-stamp
  fi
  export PATH="$PWD/.venv/bin:$PATH" PYTHONPATH="$PWD/tests${PYTHONPATH:+:$PYTHONPATH}"
}

# On CI the web demo's tests need a browser; elsewhere they are skipped without one, as this takes apt and root.
install_browser() {
  if [ -z "${CI:-}" ] || command -v chromedriver >/dev/null || [ "$(id -u)" != 0 ]; then
    return
  fi
  export DEBIAN_FRONTEND=noninteractive
  local install="apt-get install -y -q --no-install-recommends chromium chromium-driver"
  $install || { apt-get update -q && $install; }
}

await_job() { # PID LOG
  wait "$1" || {
    cat "$2" >&2
    return 1
  }
}

style() {
  stage "lint" ruff check src tests
  stage "format" ruff format --check src tests
}

types() {
  mypy src/dex-lite/dex_lite src/dex-agents/dex_agents \
    src/dex-agents-google-adk/dex_agents_google_adk tests
}

# More processes than cores, as tests wait for other processes about half of their time.
tests() {
  local cores
  cores=$(getconf _NPROCESSORS_ONLN)
  python -m pytest -q -p no:cacheprovider --durations=20 --durations-min=5 \
    --processes "$((cores < 4 ? 2 * cores : 8))"
}

command=${1:-all}
[ $# -eq 0 ] || shift
case "$command" in
  all)
    [ $# -eq 0 ] || fail "no arguments are taken here; ./ci.sh test … passes them to pytest"
    browser_log=$(mktemp)
    install_browser >"$browser_log" 2>&1 &
    browser=$!
    setup
    style
    # Tests wait a good part of their time, so the types are checked beside them.
    types_log=$(mktemp)
    types >"$types_log" 2>&1 &
    types=$!
    trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
    stage "browser" await_job "$browser" "$browser_log"
    stage "tests" tests
    stage "types" await_job "$types" "$types_log"
    ;;
  demo)
    setup
    exec dex-agents-demo "$@"
    ;;
  bench)
    setup
    exec python tests/bench/run.py "$@"
    ;;
  test)
    setup
    exec python -m pytest "$@"
    ;;
  long)
    setup
    exec python -m pytest -m long --timeout 3600 "$@"
    ;;
  lint)
    setup
    style
    stage "types" types
    ;;
  setup) setup ;;
  help | -h | --help) usage ;;
  *)
    usage >&2
    exit 2
    ;;
esac
