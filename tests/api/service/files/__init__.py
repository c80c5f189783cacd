"""Files over HTTP: uploads whole and broken, large ones, and limits on what is stored."""
