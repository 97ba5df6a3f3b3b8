"""Figures of fronts, searches and steps, drawn by Plotly from tables; they know spaces and no study."""
