"""A session as one document: Markdown, a page, or JSON lines. Knows messages; does not know where they come from."""
