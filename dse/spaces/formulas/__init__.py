"""Formulas of spaces: parsed, checked for names and units, evaluated on columns and on boxes."""
