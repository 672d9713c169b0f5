"""`python -m antiphon`: the same program as `antiphon`."""

from antiphon.cli.entry import main

if __name__ == "__main__":
    main()
