"""The parts that all commands share: settings, the database, output, error handling, and the end of the process."""
