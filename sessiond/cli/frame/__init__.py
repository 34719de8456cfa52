"""Declaration, parsing, help and error handling of commands. Knows no command."""
