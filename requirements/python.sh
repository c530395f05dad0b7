#!/bin/sh
# Names a Python here with what `make` asks of it: the one that the tests run on first, then the
# newest that the locks have wheels for; or none.
for minor in 11 13 12; do
    if "python3.$minor" -c 'import pip, venv' 2>/dev/null; then
        echo "python3.$minor"
        exit
    fi
done
