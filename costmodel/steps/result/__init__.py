"""The table of a step: its parts and totals, evaluated in chunks, and runs with interruptions."""
