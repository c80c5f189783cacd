"""What is around the code: its layers and sizes, logs, documents and deployment."""
