"""Number formats of weights: selecting one for the machine, quantising, importance matrices.

In: a GGUF file.
Out: a model in the chosen format.
Public: saved_format.find_format, format_selection.open_model, quantise.requantise, formats.Importance,
saved_format.SavedFormat, importance_matrix.check_text.
"""
