"""Helpers that every other package may use. They import no other package of this project."""
