"""Why it is slow, why it hangs: facts from observations, rules over facts, findings with their lines.

Imports readers, nccl, hardware, observations and what lies under them; nothing of tuning, accuracy or reports.
"""

from busbw.diagnosis.explain import Explanation, diagnose, explain
from busbw.diagnosis.facts import Facts
from busbw.diagnosis.findings import Check, Cleared, Diagnosis, Evidence, Finding, LineRef, kinds, to_json

__all__ = [
    "Check",
    "Cleared",
    "Diagnosis",
    "Evidence",
    "Explanation",
    "Facts",
    "Finding",
    "LineRef",
    "diagnose",
    "explain",
    "kinds",
    "to_json",
]
