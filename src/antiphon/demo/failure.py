"""What ends the demo early."""


class DemoFailed(Exception):  # noqa: N818 - the demo's verdict, not a kind of mistake
    """Something that the demo promises did not happen; the message says what."""
