"""Figures of a program by name: what it trains, and how."""
