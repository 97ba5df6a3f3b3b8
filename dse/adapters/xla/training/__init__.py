"""Training as a program does it: states, gradients, passes, and the purpose of each message between devices."""
