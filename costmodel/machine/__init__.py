"""Machines: chips, memory levels, links, ranges of its quantities, price and power."""
