#!/bin/sh
# The tests under the CUDA lock, on a machine without a GPU: whether its versions fit together.
#
#     requirements/cuda_on_cpu.sh [ARGUMENT OF PYTEST...]
#
# They run on the CPU. It takes 8 GB of downloads, and 9 GB in build/cuda. fbgemm's CUDA library
# does not load without the driver's libnvidia-ml.so.1, for which a stub stands in.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-$(requirements/python.sh)}
venv=build/cuda/venv
pip="$python -m pip --python $venv/bin/python --disable-pip-version-check"
if [ ! -e $venv/ready ] || [ requirements/cuda.txt -nt $venv/ready ]; then
    "$python" -m venv --clear --without-pip $venv
    $pip install --quiet --no-cache-dir --no-deps --require-hashes -r requirements/cuda.txt
    $pip install --quiet --no-deps --no-build-isolation --editable .
    touch $venv/ready
fi
if ! ldconfig -p | grep -q libnvidia-ml.so.1; then
    mkdir -p build/cuda/lib
    ${CC:-cc} -shared -fPIC -o build/cuda/lib/libnvidia-ml.so.1 requirements/libnvidia_ml.c
    export LD_LIBRARY_PATH="$PWD/build/cuda/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi
exec $venv/bin/python -m pytest "$@"
