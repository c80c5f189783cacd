"""Reports of comparisons and compilations: tables, charts, HTML pages.

In: measured rows.
Out: CSV, PNG and HTML files.
Public: comparison_report.charts, comparison.Compared, comparison.compare.
"""
