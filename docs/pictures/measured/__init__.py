"""Charts of what benchmarks measured: a JSON file of figures, the picture, and the program that draws it."""
