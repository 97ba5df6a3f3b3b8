"""How designs are proposed: Optuna's methods, and screening by bulk pricing."""
