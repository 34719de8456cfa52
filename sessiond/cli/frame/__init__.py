"""What a command is, how a command line becomes one, and how it ends. Knows no command."""
