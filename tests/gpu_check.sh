#!/usr/bin/env bash
# What needs a GPU: builds the kernels, runs the tests marked gpu, memcheck and racecheck on small views, and suites.
#
#   tests/gpu_check.sh OUTDIR COMMIT [SUITE[:SECONDS] ...]
#
# OUTDIR gets log.txt, and records.tar.gz with the records and reports of the suites (paths, or names in suites/), each
# with a budget of so many seconds. COMMIT stands in every record. Each part has a time limit; the exit code is 0 when
# every part went well. PARTS, of "tests cells several sanitizers", leaves others out.
set -uo pipefail
cd "$(dirname "$0")/.."

out=${1:?"usage: tests/gpu_check.sh OUTDIR COMMIT [SUITE[:SECONDS] ...]"}
commit=${2:?"usage: tests/gpu_check.sh OUTDIR COMMIT [SUITE[:SECONDS] ...]"}
shift 2
mkdir -p "$out"
exec > >(tee "$out/log.txt") 2>&1
python=${PYTHON:-python3}
failed=0

part() { # seconds, name, command ...
    local limit=$1 name=$2 begun=$SECONDS
    shift 2
    if timeout "$limit" "$@"; then
        echo "== $name: ok, $((SECONDS - begun)) s"
    else
        echo "== $name: FAILED with exit code $?, $((SECONDS - begun)) s"
        failed=1
    fi
}

asked() { # part
    [[ " ${PARTS:-tests cells several sanitizers} " == *" $1 "* ]]
}

# A program finds the packages by this.
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
echo "commit $commit"
[[ -e .git ]] || echo "$commit" >COMMIT  # Records of a tree that came without its repository name it all the same.
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
part 180 build "$python" -m harness build
if "$python" -c 'import gsplat' 2>/dev/null; then
    # The peer's kernels, before several tests want them at once.
    part 400 gsplat env MAX_JOBS="$(nproc)" "$python" -c 'import gsplat.cuda._backend'
fi
workers=()
"$python" -c 'import xdist' 2>/dev/null && workers=(-n "$(nproc)")
if asked tests; then
    # One thread each: the oracle computes on the CPU, in as many processes as there are cores.
    part "${TESTS_SECONDS:-300}" tests env OMP_NUM_THREADS=1 "$python" -m pytest -m "gpu and not multigpu" \
        "${workers[@]}" tests/cuda_src tests/strategies
fi
if asked cells; then
    # Alone on the GPU: a cell that another process disturbs is invalid. The trial of the gate, four minutes, is its own
    # command.
    part "${CELLS_SECONDS:-400}" cells "$python" -m pytest --durations=5 -m "gpu and not multigpu and not slow" \
        tests/harness
fi
if asked several && "$python" -c 'import sys, torch; sys.exit(torch.cuda.device_count() < 2)'; then
    # Apart, as the cells want the GPUs to themselves and the first tests leave a context on them.
    # Each waits for processes of its own, so that several at a time share the GPUs; but those that hold time to a rate.
    [[ ${#workers[@]} -gt 0 ]] && workers=(-n 8)
    part "${SEVERAL_TESTS_SECONDS:-300}" "tests of several GPUs" "$python" -m pytest -rs --durations=5 -m multigpu \
        -k "not paced" "${workers[@]}" tests/cuda_src tests/strategies
    part "${SEVERAL_CELLS_SECONDS:-300}" "cells of several GPUs, and paced exchanges" "$python" -m pytest -rs \
        --durations=5 -m multigpu -k "paced or harness" tests
fi
if asked sanitizers; then
    if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck; do
            part "${SANITIZER_SECONDS:-120}" "$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 \
                "$python" tests/cuda_src/small_view.py
        done
    else
        echo "== compute-sanitizer: not installed, skipped"
    fi
fi

records=$(mktemp -d)
for given in "$@"; do
    suite=${given%:*} seconds=${SUITE_SECONDS:-400}
    [[ $given == *:* ]] && seconds=${given##*:}
    [[ -f $suite ]] || suite=suites/$suite.yaml
    # The budget leaves cells out as rows; the limit is for a cell that takes longer than it was expected to.
    part "$((seconds + 30))" "$suite" "$python" -m harness run "$suite" --device cuda --budget "${seconds}s" \
        --out "$records/$(basename "$suite" .yaml)"
done
if [[ $# -gt 0 ]]; then
    tar -czf "$out/records.tar.gz" -C "$records" --exclude='*/cells/*/images' .
fi
exit $failed
