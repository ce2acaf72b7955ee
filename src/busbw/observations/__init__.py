"""What tools' output says, in columns, with the file and line it came from; and the store that keeps it.

Imports nothing of busbw but units, errors, statistics and hardware.
"""

from busbw.observations.artefacts import DATABASE_HEADER, Artefact, is_database, sha256_of
from busbw.observations.circumstances import Circumstances
from busbw.observations.rows_file import ROWS_FILE, rows_lines
from busbw.observations.secrets import is_allowed_variable, redact, redact_text
from busbw.observations.tables import SCHEMAS, Rows, rows_of

__all__ = [
    "DATABASE_HEADER",
    "ROWS_FILE",
    "SCHEMAS",
    "Artefact",
    "Circumstances",
    "Rows",
    "is_allowed_variable",
    "is_database",
    "redact",
    "redact_text",
    "rows_lines",
    "rows_of",
    "sha256_of",
]
