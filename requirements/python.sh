#!/bin/sh
# Names a Python here with what `make` asks of it: the one that the tests run on first, then the
# newest that the locks have wheels for; or none. An environment without pip, as .venv is, is passed
# over where it is active.
IFS=:
for minor in 11 13 12; do
    for folder in $PATH; do
        if "$folder/python3.$minor" -c 'import pip, venv' 2>/dev/null; then
            echo "$folder/python3.$minor"
            exit
        fi
    done
done
