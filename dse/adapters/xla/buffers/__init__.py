"""When arrays of a program live, and the memory that a compiler reserves for them."""
