"""One connection: how it is opened, its turn to write, what its errors mean, and the tables."""
