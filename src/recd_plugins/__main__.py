"""`python -m recd_plugins` is `recd`: also how ranks are started, and what torchrun runs."""

INTERRUPTED = 130
"""The exit code by Ctrl-C, as shells have it: nothing is imported for it."""


def main() -> None:
    """The entry point of the `recd` script. Ctrl-C ends it without a traceback, be it that the
    command line is still being imported."""
    try:
        from recd_plugins.cli.main import main as command_line

        command_line()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    main()
