"""One connection: how it is opened, how it takes turns to write, what its errors mean, and the tables."""
