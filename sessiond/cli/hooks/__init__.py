"""What `sessiond hook` knows of the programs that call it: their settings, what they say, what they want to hear."""
