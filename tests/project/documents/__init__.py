"""The documents: their links, and that code and files are as they say."""
