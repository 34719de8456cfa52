"""Output for people: escaped, fitted to the terminal, coloured if possible. Knows no daemon and no command."""
