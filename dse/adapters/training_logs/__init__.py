"""Logs of training runs: those of Megatron-LM, Megatron-Bridge, NeMo, torchtitan, MaxText and nanotron, and JSON."""
