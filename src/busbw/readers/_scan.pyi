"""Log scanning: line heads, message templates, columns."""

from collections.abc import Sequence


class LogScanner:
    """Scans a log in chunks. feed() gives the GIL up."""

    def __init__(self, patterns: Sequence[str], with_rows: Sequence[int], plain_budget_bytes: int) -> None:
        """
        patterns: message templates, tried in this order. with_rows: ascending indices of those whose lines become rows of typed columns;
        they begin at the start of the message and are tried before all others. Raises ValueError for a template that is malformed.
        """

    def fresh(self, plain_budget_bytes: int) -> LogScanner:
        """
        A scanner for another file, with the same templates, which are not taken apart again.
        """

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the file."""

    def finish(self) -> None:
        """The end of the file: takes the last line."""

    def take(self) -> dict:
        """
        The lines kept since the last take(), as arrays (lines,) and (offsets, data) pairs of strings; `rows`: by index of template, the
        rows of those with rows. Their fields by type: d, i int64, unknown is the least one; f float64, unknown is NaN; k a pair of int32
        codes, unknown is -1, and strings by code; x, w, s strings.
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

    def field_types(self) -> list[str]:
        """Types of the fields of every template, a letter each."""
