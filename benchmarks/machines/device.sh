#!/usr/bin/env bash
# Measures daskprep on a machine of 16 cores with a GPU, in at most 9 minutes: a write by threads and processes and polars
# beside it, a loader on 1 to 16 cores, and batches made on the GPU. JSON lines go to the folder $OUT.
#
#   benchmarks/machines/device.sh prepare     here: collect wheels and images in bench-data/device
#   benchmarks/machines/device.sh             there, with bench-data/device beside the working tree
#
# Small numbers try it on any machine: ROWS=200000 CORES="1 2" WORKERS=2 DEVICE=cpu benchmarks/machines/device.sh
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
CARRIED=bench-data/device
SHARED=${SHARED:-../shared}
PYTHON=${PYTHON:-python3}

prepare() {
    # The machine has torch, pandas, pyarrow, scikit-learn and what they need, for Python 3.12, but not these.
    local packages="dask==2026.8.0 distributed==2026.8.0 zarr==3.1.6 numcodecs==0.16.6 google-crc32c==1.9.0 locket==1.0.0
        partd==1.4.2 tblib==3.2.2 zict==3.0.0 tornado==6.6.1 donfig==0.8.1.post1 polars==2.1.0 polars-runtime-32==2.1.0"
    local platforms="2_28_x86_64 2_17_x86_64 2_5_x86_64" work platform
    work=$(mktemp -d)
    rm -rf "$CARRIED" && mkdir -p "$CARRIED"
    # shellcheck disable=SC2086,SC2046
    "$PYTHON" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
        $(for platform in $platforms; do echo --platform "manylinux_$platform"; done) --platform manylinux2014_x86_64 \
        -d "$work/wheels" $packages
    mkdir "$work/site" && for wheel in "$work"/wheels/*.whl; do unzip -q -o "$wheel" -d "$work/site"; done
    # What travels is limited to 64 MiB: polars alone is 54 MB as a wheel.
    find "$work/site" -name "*.so" -exec strip {} +
    tar -C "$work/site" -c . | xz -6 -T0 > "$CARRIED/site.tar.xz"
    mkdir "$CARRIED/images"
    find "$SHARED/media/images" -iname "*.jp*g" -type f | sort | head -n 60 | xargs cp -t "$CARRIED/images"
    rm -rf "$work"
    du -sh "$CARRIED"
}

if [ "${1:-}" = prepare ]; then
    prepare
    exit
fi

ROWS=${ROWS:-4000000}
CORES=${CORES:-1 2 4 8 16}
WORKERS=${WORKERS:-2 4 8 16}
DEVICE=${DEVICE:-cuda}
OUT=${OUT:-bench-out/device}
LIMIT=${LIMIT:-530}
mkdir -p "$OUT"
OUT=$(realpath "$OUT")
SCRATCH=$(mktemp -d)
trap 'rm -rf "$SCRATCH"' EXIT
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1 TMPDIR=$SCRATCH
if [ "${SITE:-1}" = 1 ]; then
    "$PYTHON" -m tarfile -e "$CARRIED/site.tar.xz" "$SCRATCH/site"
    # Workers compare the versions of installed packages.
    mkdir "$SCRATCH/site/daskprep-0.1.0.dist-info"
    printf 'Metadata-Version: 2.1\nName: daskprep\nVersion: 0.1.0\n' > "$SCRATCH/site/daskprep-0.1.0.dist-info/METADATA"
    export PYTHONPATH=$PYTHONPATH:$SCRATCH/site
fi
IMAGES=$(realpath "$CARRIED/images")

# Runs a step with at most so many seconds, if there are any left: its output goes to a file, its errors to a log.
step() {
    local name=$1 seconds=$2 left=$((LIMIT - SECONDS)) began=$SECONDS status
    shift 2
    if [ "$left" -lt 5 ]; then
        status=skipped
    else
        timeout "$((left < seconds ? left : seconds))" "$@" >> "$OUT/$name.jsonl" 2>> "$OUT/errors.log"
        status=$?
    fi
    echo "{\"step\": \"$name\", \"exit\": \"$status\", \"seconds\": $((SECONDS - began))}" | tee -a "$OUT/steps.jsonl"
}

step versions 60 "$PYTHON" -c 'import json, os, sys, torch, numpy, pyarrow, dask, polars, daskprep
print(json.dumps({"python": sys.version.split()[0], "cores": os.cpu_count(), "affinity": len(os.sched_getaffinity(0)),
    **{module.__name__: module.__version__ for module in (torch, numpy, pyarrow, dask, polars)}}))'
step data 90 "$PYTHON" -m benchmarks.peers.gen --rows "$ROWS" --data "$SCRATCH/data" --workers "$(nproc)"
step gpu 150 "$PYTHON" -m benchmarks.machines.gpu --device "$DEVICE" --rows "$((ROWS / 2))" --only copy,load,expand,idle
# shellcheck disable=SC2086
step loader 60 "$PYTHON" -m benchmarks.machines.cores --packed "$SCRATCH/packed" --cores $CORES
# shellcheck disable=SC2086
step processes 110 "$PYTHON" -m benchmarks.machines.processes --data "$SCRATCH/data" --rows "$ROWS" --workers $WORKERS --rounds 2
# prep.py prints a table, and its figures as JSON among the errors.
# shellcheck disable=SC2016
step polars 80 bash -c 'set -o pipefail; "$@" 2>&1 | tee -a "$0/errors.log" | grep "^{"' "$OUT" \
    "$PYTHON" -m benchmarks.peers.prep --peer-python "$PYTHON" --data "$SCRATCH/data" --rows "$ROWS" \
    --against polars --rounds 3
# shellcheck disable=SC2086
step threads 100 "$PYTHON" -m benchmarks.machines.cores --data "$SCRATCH/data" --rows "$ROWS" --cores $CORES
step images 100 "$PYTHON" -m benchmarks.machines.gpu --device "$DEVICE" --rows 200000 --images "$IMAGES" --photos 4096 \
    --only augment
