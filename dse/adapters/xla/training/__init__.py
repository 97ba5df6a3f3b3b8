"""How a program trains: state, gradients, passes, and what each message between devices is for."""
