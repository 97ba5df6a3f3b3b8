"""Megatron-Bridge: configurations in YAML, with the parameters of Megatron Core."""
