"""Designs as the launch files of training frameworks, and launch files as designs."""
