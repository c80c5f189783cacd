"""One hostile key beside an honest one: what the honest key's requests take, alone and beside it."""
