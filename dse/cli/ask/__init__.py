"""Commands that ask for designs: plan, search, enumerate."""
