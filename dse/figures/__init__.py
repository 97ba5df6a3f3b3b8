"""Figures of fronts, searches and steps, drawn by Altair from tables; they know spaces and no study."""
