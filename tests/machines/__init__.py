"""The system on many hosts, which are network namespaces: their links and processes fail under load."""
