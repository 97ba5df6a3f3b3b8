"""Commands that say why: explain, compare, report, tables of studies."""
