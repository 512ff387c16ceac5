#!/usr/bin/env bash
# GPU tests and benchmarks on a machine that may have no network. See --help.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    cat <<'HELP'
usage: scripts/gpu.sh [--no-install] [--no-tests] [--no-bench] [--tests EXPR] [--commit HASH]
                      [-- BENCH-OPTIONS]

Runs the GPU tests and the benchmarks (`attnhub bench`, those of plugins/, that of the launcher) with
the Python that has torch on this machine, and leaves what they print in a folder. Fetches nothing:
Python packages that the machine lacks are taken, as wheels, from .whl/ in the repository. Bring
hatchling and its needs (editables, pathspec, pluggy, trove-classifiers, tomlkit) there if the machine
has no hatchling.

options:
  --no-install    attnhub and its plugins are installed already
  --no-tests      benchmarks only
  --no-bench      tests only
  --tests EXPR    marker expression for pytest (default: "gpu and not exhaustive")
  --commit HASH   what the results say is measured, where the tree came without its git history
  -- OPTIONS      handed to `attnhub bench run`
  -h, --help      this text

environment:
  PYTHON          the interpreter (default: python3)
  OUT             folder for env.log, pytest.log, pytest.xml, bench.log, and the results of the
                  plugins and of the launcher (default: gpu-out)

exit status: 0 if all that was asked for passed, 1 if anything failed, 2 for a wrong option.
HELP
}

install=1 tests=1 bench=1 markers="gpu and not exhaustive" commit=()
while (($#)); do
    case "$1" in
        --no-install) install=0 ;;
        --no-tests) tests=0 ;;
        --no-bench) bench=0 ;;
        --tests) markers="${2:?--tests needs a marker expression}" && shift ;;
        --commit) commit=(--commit "${2:?--commit needs a hash}") && shift ;;
        -h | --help) usage && exit 0 ;;
        --) shift && break ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done

python="${PYTHON:-python3}"
out="${OUT:-gpu-out}"
pip=("$python" -m pip install -q --disable-pip-version-check --no-index --no-deps)
mkdir -p "$out"
export PYTHONUNBUFFERED=1

if ((install)); then
    shopt -s nullglob
    wheels=(.whl/*.whl) plugins=({plugins,examples}/*/pyproject.toml)
    if ((${#wheels[@]})); then "${pip[@]}" --find-links .whl "${wheels[@]}"; fi
    # --no-deps: what the machine has of torch and triton is what is to be tested.
    editable=(-e .)
    for plugin in "${plugins[@]}"; do editable+=(-e "./${plugin%/*}"); done
    "${pip[@]}" --no-build-isolation "${editable[@]}"
fi

{
    date -u +%FT%TZ
    git rev-parse --verify -q HEAD 2>/dev/null || echo "no git history here"
    nvidia-smi || echo "no nvidia-smi"
    "$python" -m pip list --disable-pip-version-check
    "$python" -m pip check || echo "the packages above that attnhub names must come as wheels in .whl/"
} >"$out/env.log" 2>&1

status=0
if ((tests)); then
    "$python" -m pytest -m "$markers" -p no:cacheprovider --junitxml="$out/pytest.xml" 2>&1 |
        tee "$out/pytest.log" || status=1
fi
if ((bench)); then
    "$python" -c 'from attnhub.cli import main; main()' bench run "${commit[@]}" "$@" 2>&1 |
        tee "$out/bench.log" || status=1
    # One that fails does not keep the others from running.
    own=("${commit[@]}" --out "$out/results")
    for script in plugins/*/benchmarks/*.py; do
        "$python" "$script" "${own[@]}" 2>&1 | tee -a "$out/bench.log" || status=1
    done
    "$python" -m benchmarks.launcher "${own[@]}" 2>&1 | tee -a "$out/bench.log" || status=1
fi
exit "$status"
