"""The library as Python has it: whatever a command does, with what the command takes."""
