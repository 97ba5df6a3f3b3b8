"""Constants of the user's machine from measurements of it."""
