"""The logic of the routes: submit jobs, wait for them, stream them, read and write files.

In: validated requests.
Out: jobs, events and files, from the stores of tasks.
Public: dependencies.GatewayDep, dependencies.Gateway, file_response.ContentResponse, job_stream.Text,
model_routing.View, file_response.open_content.
"""
