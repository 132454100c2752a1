"""The web view: a process of its own that finds the live workers, asks each for its status, and shows it merged."""

from app.web._inquiry import Inquiry
from app.web._model import KnownIdentity, Lookup, Overview, Partition, Stream, Totals, Worker
from app.web._pages import WebServer
from app.web._results import ResultPartition, Results

__all__ = [
    "Inquiry",
    "KnownIdentity",
    "Lookup",
    "Overview",
    "Partition",
    "ResultPartition",
    "Results",
    "Stream",
    "Totals",
    "WebServer",
    "Worker",
]
