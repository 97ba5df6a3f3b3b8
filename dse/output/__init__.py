"""Results as text, as JSON records and as files of tables."""
