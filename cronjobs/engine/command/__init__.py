"""What all commands share: settings, the database, output, error handling, and how the process ends."""
