"""Constants of one's own machine from measurements of it."""
