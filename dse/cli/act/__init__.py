"""Commands that take and give files, and price what is named."""
