"""`python -m recd_plugins` is `recd`: also how ranks are started, and what torchrun runs."""

import atexit
import gc

INTERRUPTED = 130
"""The exit code by Ctrl-C, as shells have it: nothing is imported for it."""


def main() -> None:
    """The entry point of the `recd` script. Ctrl-C ends it without a traceback, be it that the
    command line is still being imported."""
    # At the end Python looks for garbage in all that was imported, which takes as long as a third
    # of the imports. What is frozen it passes over.
    atexit.register(gc.freeze)
    try:
        from recd_plugins.cli.main import main as command_line

        command_line()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    main()
