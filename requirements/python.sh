#!/bin/sh
# Names the newest Python here that the locks have wheels for, with what `make` asks of it; or none.
for minor in 13 12 11; do
    if "python3.$minor" -c 'import pip, venv' 2>/dev/null; then
        echo "python3.$minor"
        exit
    fi
done
