"""Lower bounds of the designs of a space, and the search that they prune."""
