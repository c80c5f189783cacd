"""The logic of the routes: submit jobs, wait for them, stream them, read and write files.

In: validated requests.
Out: jobs, events and files, from the stores of tasks.
"""
