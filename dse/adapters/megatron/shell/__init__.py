"""The part of Bash that launch scripts are written in."""
