"""The command line. It parses options and prints text or JSON; the decisions are made in other packages."""
