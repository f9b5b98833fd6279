#!/usr/bin/env bash
# Sets the workspace up from hashed pins and checks it. "./ci.sh help" lists the commands.
set -euo pipefail
cd "$(dirname "$0")"

usage() {
  cat <<'TEXT'
./ci.sh             set up, then lint, format check, types and tests
./ci.sh demo …      set up, then run the demo (--yes approves by itself, --data FOLDER keeps the data)
./ci.sh bench …     set up, then measure (--rounds N --sessions N --workers N)
./ci.sh test …      set up, then pytest with these arguments
./ci.sh long …      set up, then the long chaos and soak tests
./ci.sh lint        set up, then lint, format check and types
./ci.sh setup       only set up .venv
TEXT
}

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.11 python3 python; do
    [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "ci.sh needs Python 3.11 or newer with pip and venv; set PYTHON to one" >&2
  exit 1
}

stage() {
  local name=$1 started=$SECONDS
  shift
  echo "== $name"
  "$@"
  echo "== $name: $((SECONDS - started)) s"
}

setup() {
  local python stamp
  python=$(find_python)
  stamp=$("$python" - <<'PY'
import hashlib, pathlib, sys
files = ["requirements.lock", *sorted(str(p) for p in pathlib.Path("src").glob("*/pyproject.toml"))]
digest = hashlib.sha256(sys.version.encode())
for name in files:
    digest.update(pathlib.Path(name).read_bytes())
print(digest.hexdigest())
PY
)
  if [ "$(cat .venv/stamp 2>/dev/null)" != "$stamp" ]; then
    rm -rf .venv
    "$python" -m venv .venv
    .venv/bin/python -m pip install --quiet --require-hashes -r requirements.lock
    .venv/bin/python -m pip install --quiet --no-deps --no-build-isolation \
      -e src/dex-lite -e src/dex-agents -e src/dex-agents-google-adk
    echo "$stamp" > .venv/stamp
  fi
  export PATH="$PWD/.venv/bin:$PATH" PYTHONPATH="$PWD/tests${PYTHONPATH:+:$PYTHONPATH}"
}

lint() {
  stage "lint" ruff check src tests
  stage "format" ruff format --check src tests
  stage "types" mypy src/dex-lite/dex_lite src/dex-agents/dex_agents \
    src/dex-agents-google-adk/dex_agents_google_adk tests
}

command=${1:-all}
[ $# -gt 0 ] && shift
case "$command" in
  all)
    stage "setup" setup
    lint
    stage "tests" python -m pytest -q "$@"
    ;;
  demo) setup && exec dex-agents-demo "$@" ;;
  bench) setup && exec python tests/bench/run.py "$@" ;;
  test) setup && exec python -m pytest "$@" ;;
  long) setup && exec python -m pytest -m long --timeout 3600 "$@" ;;
  lint) setup && lint ;;
  setup) stage "setup" setup ;;
  help | -h | --help) usage ;;
  *)
    usage >&2
    exit 2
    ;;
esac
