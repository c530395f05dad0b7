"""`python -m recd_plugins` is `recd`: also how ranks are started, and what torchrun runs."""

from recd_plugins.cli.main import main

if __name__ == "__main__":
    main()
