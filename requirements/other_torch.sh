#!/bin/sh
# The tests under another torch than the lock's, with the fbgemm and TorchRec that belong to it.
#
#     requirements/other_torch.sh 2.11.0 [ARGUMENT OF PYTEST...]
#
# All else is the lock's, but for tensordict, which goes by torch. They run on the CPU, by PyPI's
# torch, which is the build for CUDA: 3 GB of downloads, and 6 GB in build/torch-2.11.0.
set -eu
cd "$(dirname "$0")/.."
torch=${1:?"name a version of torch"}
shift
minor=$(echo "$torch" | cut -d. -f2)
venv=build/torch-$torch
python=${PYTHON:-$(requirements/python.sh)}
pip="$python -m pip --python $venv/bin/python --disable-pip-version-check"
if [ ! -e "$venv/ready" ] || [ requirements/cpu.txt -nt "$venv/ready" ]; then
    "$python" -m venv --clear --without-pip "$venv"
    $pip install --quiet --no-cache-dir "torch===$torch" tensordict
    sed -n 's/^\([a-z][^ ]*==[^ ]*\).*/\1/p' requirements/cpu.txt |
        grep -v "^torch==\|^torchrec==\|^fbgemm-gpu-cpu==\|^tensordict==" >"$venv/lock.txt"
    $pip install --quiet --no-cache-dir --no-deps -r "$venv/lock.txt"
    $pip install --quiet --no-cache-dir --no-deps \
        "fbgemm-gpu-cpu==1.$((minor - 5)).*" "torchrec==1.$((minor - 5)).*"
    $pip install --quiet --no-deps --no-build-isolation --editable .
    touch "$venv/ready"
fi
# What these versions warn of among themselves, where the lock's do not. The last is torch's
# "Warning: Profiler clears events": a colon would end what -W matches.
exec "$venv/bin/python" -m pytest \
    -W 'ignore:`_get_pg_default_device` will be deprecated' \
    -W "ignore:Multiple backends are registered" \
    -W "ignore:Sparse invariant checks" \
    -W "ignore:The given buffer is not writable" \
    -W "ignore:TypedStorage is deprecated" \
    -W "ignore:_check_is_size will be removed" \
    -W "ignore:Warning" \
    "$@"
