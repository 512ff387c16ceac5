#!/usr/bin/env bash
# GPU tests and benchmarks on a machine that may have no network. See --help.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/.."

usage() {
    cat <<'HELP'
usage: scripts/gpu.sh [--no-install] [--no-tests] [--no-bench] [--sanitize] [--tests EXPR] [--in PATH]
                      [--shards N] [--bare | --nvcc] [--commit HASH] [-- BENCH-OPTIONS]

Runs the GPU tests and the benchmarks (`attnhub bench`, those of plugins/, that of the launcher) with
the Python that has torch on this machine, and leaves what they print in a folder. Fetches nothing:
Python packages that the machine lacks are taken, as wheels, from .whl/ in the repository. Bring
hatchling and its needs (editables, pathspec, pluggy, trove-classifiers, tomlkit) there if the machine
has no hatchling.

options:
  --no-install    attnhub and its plugins are installed already
  --no-tests      no tests
  --no-bench      no benchmarks
  --sanitize      small problems under compute-sanitizer too; if it cannot run here, that is said
  --tests EXPR    marker expression for pytest (default: "gpu and not exhaustive")
  --in PATH       only the tests of this file or folder
  --shards N      deal the tests over N processes, which share the GPU
  --bare          test as without a CUDA toolkit and compilers: with an empty PATH, as root with empty
                  folders over /usr/local/cuda*, and with every kernel compiled anew
  --nvcc          test with every kernel compiled anew by nvcc
  --commit HASH   what the results say is measured, where the tree came without its git history
  -- OPTIONS      handed to `attnhub bench run`
  -h, --help      this text

environment:
  PYTHON          the interpreter (default: python3)
  OUT             folder (default: gpu-out) for env.log, pytest.log and .xml, pytest-shard-K.ids, .log
                  and .xml, sanitize*.log, bench.log, and results of the plugins and of the launcher

exit status: 0 if all that was asked for passed, 1 if anything failed, 2 for a wrong option.
HELP
}

install=1 tests=1 bench=1 sanitize=0 shards=1 as="" markers="gpu and not exhaustive" paths=() commit=()
while (($#)); do
    case "$1" in
        --no-install) install=0 ;;
        --no-tests) tests=0 ;;
        --no-bench) bench=0 ;;
        --sanitize) sanitize=1 ;;
        --tests) markers="${2:?--tests needs a marker expression}" && shift ;;
        --in) paths=("${2:?--in needs a file or folder}") && shift ;;
        --shards) shards="${2:?--shards needs a number}" && shift ;;
        --bare | --nvcc) as+="$1" ;;
        --commit) commit=(--commit "${2:?--commit needs a hash}") && shift ;;
        -h | --help) usage && exit 0 ;;
        --) shift && break ;;
        *) usage >&2 && exit 2 ;;
    esac
    shift
done
if [[ ! $shards =~ ^[1-9][0-9]*$ || $as == --*--* ]]; then usage >&2 && exit 2; fi

python="${PYTHON:-python3}"
out="${OUT:-gpu-out}"
pip=("$python" -m pip install -q --disable-pip-version-check --no-index --no-deps)
mkdir -p "$out"
export PYTHONUNBUFFERED=1
scratch="$(mktemp -d)" && trap 'rm -rf "$scratch"' EXIT

plugins=({plugins,examples}/*/pyproject.toml) path="$PWD"
if ((install)); then
    wheels=(.whl/*.whl)
    if ((${#wheels[@]})); then "${pip[@]}" --find-links .whl "${wheels[@]}"; fi
    # --no-deps: what the machine has of torch and triton is what is to be tested.
    editable=(-e .)
    for plugin in "${plugins[@]}"; do editable+=(-e "./${plugin%/*}"); done
    "${pip[@]}" --no-build-isolation "${editable[@]}"
fi
# What is installed may be a copy of an older tree.
for plugin in "${plugins[@]}"; do path+=":$PWD/${plugin%/*}"; done
export PYTHONPATH="$path${PYTHONPATH:+:$PYTHONPATH}"

{
    date -u +%FT%TZ
    git rev-parse --verify -q HEAD 2>/dev/null || echo "no git history here"
    nvidia-smi || echo "no nvidia-smi"
    "$python" -m pip list --disable-pip-version-check
    "$python" -m pip check || echo "the packages above that attnhub names must come as wheels in .whl/"
} >"$out/env.log" 2>&1

test_in_shards() { # PYTEST...
    local k status=0 pids=() logs=() all="$scratch/collected"
    rm -f "$out"/pytest-shard-*
    "$@" --collect-only -q "${paths[@]}" >"$all" || { cat "$all" && return 1; }
    awk -v n="$shards" -v to="$out/pytest-shard-" \
        '!NF { exit } { print > (to ((NR - 1) % n + 1) ".ids") }' "$all"
    trap 'kill "${pids[@]}" 2>/dev/null' EXIT
    for ((k = 1; k <= shards; k++)); do
        logs[k]="$out/pytest-shard-$k.log"
        [[ -e $out/pytest-shard-$k.ids ]] || break # pytest would run everything
        # @FILE: since pytest 8.2, the least that pyproject.toml accepts.
        "$@" --junitxml="$out/pytest-shard-$k.xml" "@$out/pytest-shard-$k.ids" >"${logs[k]}" 2>&1 &
        pids[k]=$!
    done
    for k in "${!pids[@]}"; do
        wait "${pids[k]}" || { echo "shard $k: exit status $?, see ${logs[k]}" && status=1; }
        grep -E '^(FAILED|ERROR) [^ ]+\.py' "${logs[k]}" || true
    done
    # Their last lines are like "=== 1 failed, 20 passed in 3.50s ===".
    for k in "${!pids[@]}"; do grep -E '^=+ .* in [0-9.]+s' "${logs[k]}" | tail -n 1; done |
        awk '{ for (i = 2; i < NF; i++) n[substr($(i + 1), 1, 4)] += $i } END { printf "%d passed, " \
            "%d failed, %d errors, %d skipped\n", n["pass"], n["fail"], n["erro"], n["skip"] }'
    return "$status"
}

status=0
if ((tests)); then
    pytest=("$("$python" -c 'import sys; print(sys.executable)')" -m pytest -c pyproject.toml
        -m "$markers" -p no:cacheprovider --color=no)
    case "$as" in
        --nvcc) pytest=(env ATTNHUB_COMPILER=nvcc ATTNHUB_CACHE_DIR="$scratch/jit" "${pytest[@]}") ;;
        --bare)
            toolkits=(/usr/local/cuda*/) empty="$(mktemp -d -p "$scratch")"
            pytest=(env -u CUDA_HOME -u CUDA_PATH -u CC -u CXX -u ATTNHUB_COMPILER PATH="$empty"
                ATTNHUB_CACHE_DIR="$scratch/jit" "${pytest[@]}")
            # shellcheck disable=SC2016
            hide=(unshare -m bash -ec 'for f in /usr/local/cuda*/; do mount --bind "$0" "$f"; done
                exec "$@"' "$empty")
            if ((${#toolkits[@]})) && "${hide[@]}" true; then pytest=("${hide[@]}" "${pytest[@]}")
            else echo "--bare: hidden is PATH only, not: ${toolkits[*]:-(no toolkit)}"; fi
            ;;
    esac
    if ((shards > 1)); then test_in_shards "${pytest[@]}"
    else "${pytest[@]}" --junitxml="$out/pytest.xml" "${paths[@]}"; fi 2>&1 |
        tee "$out/pytest.log" || status=1
fi
if ((sanitize)); then
    "$python" -m scripts.sanitize "$out" 2>&1 | tee "$out/sanitize.log" || status=1
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
