"""Figures of a program by name: the model that it trains, and the method."""
