"""Reads tables row by row, renders a prompt of each row, and writes answers as columns.

In: CSV, TSV, Parquet, XLSX, JSON and text files, or folders of text files.
Out: rows, prompts, and tables in the same formats; every error is a TableError of one line.
"""
