"""The command line. It parses options and prints text or JSON. Other packages make the decisions."""
