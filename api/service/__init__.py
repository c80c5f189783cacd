"""What the routes do: submit jobs, wait for them, stream them, read and write files.

In: checked requests.
Out: jobs, events and files, from the stores of tasks.
"""
