"""Commands that keep things true: validate, calibrate, check, catalogues, delete."""
