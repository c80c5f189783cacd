"""The client of the gateway, with retries, and the options that name it.

In: requests.
Out: answers, or one-line errors.
Public: client.call, options.JsonOption, client.check_url, options.print_list,
retrying_client.RetryingClient, options.UrlOption.
"""
