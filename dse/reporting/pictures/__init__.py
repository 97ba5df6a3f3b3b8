"""Pictures of fronts, sweeps and measurements."""
