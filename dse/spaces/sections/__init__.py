"""Sections of a space's file, each written out as parameters, values and rules."""
