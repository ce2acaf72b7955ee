"""Log scanning: line heads, message templates, columns."""

from collections.abc import Sequence


class LogScanner:
    """Scans a log in chunks. feed() gives the GIL up."""

    def __init__(self, patterns: Sequence[str], plain_budget_bytes: int) -> None:
        """
        patterns: message templates, tried in this order. Raises ValueError for one that is malformed.
        """

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the file."""

    def finish(self) -> None:
        """The end of the file: takes the last line."""

    def take(self) -> dict:
        """
        The lines kept since the last take(), as arrays (lines,) and (offsets, data) pairs of strings.
        """

    def counts(self) -> dict:
        """What was seen since the start, in lines."""

    def hosts(self) -> tuple:
        """Host names by code."""

    def locations(self) -> tuple:
        """Source places by code."""

    def functions(self) -> tuple:
        """Function names by code."""

    def field_names(self) -> list[list[str]]:
        """Names of the fields of every template."""
