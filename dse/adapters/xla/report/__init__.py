"""The report of a compiled program: its record, tables, and page."""
