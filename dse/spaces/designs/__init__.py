"""Legal designs of a space: drawn, repaired, completed and listed, never searched for."""
