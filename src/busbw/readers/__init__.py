"""Files to observations: one module per format that people already have; formats are independent of one another.

Imports observations, collectives, hardware, units and errors. Readers register under the entry point group `busbw.readers`.
"""

from busbw.readers.base import FileReader, Item, LineReader, PlainLine, TableReader, Template
from busbw.readers.nsight_systems import row_text as database_row_text
from busbw.readers.reading import Reading, ReadProgress, find_artefacts, read_artefact
from busbw.readers.registry import all_readers, file_readers, line_readers

__all__ = [
    "FileReader", "Item", "LineReader", "PlainLine", "ReadProgress", "Reading", "TableReader", "Template", "all_readers", "database_row_text",
    "file_readers", "find_artefacts", "line_readers", "read_artefact",
]  # fmt: skip
