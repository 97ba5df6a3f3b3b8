"""Rules that evaluate designs, found by the name of a profile and the kind of work."""
