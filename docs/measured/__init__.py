"""What benchmarks measured, in figures.json, and the tables and charts of the documents that show it.

`python -m docs.measured` renders every document again; benchmarks add to the file with `--record`.
"""
