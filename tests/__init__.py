"""Tests: a folder for each package of the code, beside those of the whole system.

The folders api, cli, common, compiling, engine, tables, tasks and training mirror the packages and their
rooms, so that this one folder has more than twelve entries. The others test all packages together (chaos,
integration, network, project), measure them (benchmarks), or serve the tests (support).
"""
