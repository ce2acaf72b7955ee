"""Configurations of training software as models, layouts and batches: one parser a format, each listing what it ignored.

Nothing in a configuration is run: scripts are tokenised, variables stay unresolved and are listed. Imports the nouns of
`workloads.training`.
"""

from busbw.workloads.importers.configuration import Ignored, Imported
from busbw.workloads.importers.importing import FORMATS, import_configuration

__all__ = ["FORMATS", "Ignored", "Imported", "import_configuration"]
