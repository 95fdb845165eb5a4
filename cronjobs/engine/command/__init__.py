"""The parts that every command shares: settings, database, output, faults, and the end of the process."""
