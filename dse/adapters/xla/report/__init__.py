"""The report of a compiled program: its record, tables, and a table of several systems."""
