"""Records of finished cells, as files and as tables.

from harness.records import load, samples
frame = load("results/runs/quickstart")   # one row a measurement
"""

from harness.records.load import load, samples
from harness.records.store import read_record, records

__all__ = ["load", "read_record", "records", "samples"]
