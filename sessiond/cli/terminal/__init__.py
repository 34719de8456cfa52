"""Text for people: safe, fitted to the terminal, coloured where it may be. Knows no daemon and no command."""
