"""Pareto fronts of tables of costs: non-dominated points, hypervolume, thinning."""
