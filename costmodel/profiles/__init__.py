"""Reference models, as choices over the shared formulas."""
