"""How far off predictions may be."""
