"""Exact fronts: every legal design evaluated or ruled out, and how far studies are from them."""
