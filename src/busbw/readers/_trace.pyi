"""Chrome traces scanned: spans in columns."""



class TraceScanner:
    """Scans a Chrome trace in chunks. feed() gives the GIL up."""

    def __init__(self, most_spans: int) -> None:
        """most_spans: kept at most; further ones are counted."""

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the file."""

    def finish(self) -> None:
        """The end of the file."""

    def take(self) -> dict:
        """
        The spans kept, as arrays (spans,); category, name, process and lane are codes of words(); -1: not said.
        """

    def words(self) -> list:
        """What codes stand for: JSON text between quotes."""

    def args(self) -> list:
        """Args of collectives, as JSON."""

    def members(self) -> list:
        """Top-level members but the events: key and JSON."""

    def categories(self) -> dict:
        """Events with a time, and that time, ns, by code of category."""

    @property
    def ended(self) -> bool:
        """Whether the document ended."""

    @property
    def problem(self) -> str:
        """What is wrong; empty: nothing."""

    @property
    def problem_at(self) -> int:
        """Byte of the file at which it is."""

    @property
    def events(self) -> int:
        """Events seen."""

    @property
    def without_time(self) -> int:
        """Complete events whose time is none."""

    @property
    def left_out(self) -> int:
        """Spans beyond the most."""
