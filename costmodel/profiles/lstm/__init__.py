"""Language models of LSTM cells: their kernel tables and their step, over the shared formulas."""
