"""Why a design costs what it does, what would change it, and which parameters matter."""
