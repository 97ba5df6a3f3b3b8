"""DFModel's set-ups: text and binary files <-> messages <-> graphs and set-ups of the cost model."""

from dse.adapters.dfmodel.files.records import SetupFile, setup_file
from dse.adapters.dfmodel.files.setup_files import is_setup, load_setup, setup_bytes, setup_text
from dse.adapters.dfmodel.files.writing import graph_message, setup_message

__all__ = [
    "SetupFile", "graph_message", "is_setup", "load_setup", "setup_bytes", "setup_file",
    "setup_message", "setup_text",
]  # fmt: skip
