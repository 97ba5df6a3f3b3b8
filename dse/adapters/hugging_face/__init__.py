"""Hugging Face: `config.json` of a model -> the fields of a model file."""
