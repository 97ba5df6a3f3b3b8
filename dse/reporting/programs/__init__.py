"""What files of workloads cost, for people: compiled programs, and the reference models' own."""
