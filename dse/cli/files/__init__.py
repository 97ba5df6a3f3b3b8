"""Files of other programs as `dse evaluate` takes them: options, and one module for each kind."""
