"""`python -m recd_plugins` is `recd`: also how ranks are started, and what torchrun runs."""

from __future__ import annotations

import signal


def main() -> None:
    """The entry point of the `recd` script. Ctrl-C ends it without a traceback, be it that the
    command line is still being imported."""
    try:
        from recd_plugins.cli.main import main as command_line

        command_line()
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None


if __name__ == "__main__":
    main()
