"""MaxText: configurations in YAML."""
