"""`medusaq doctor`: what is wrong with a set-up, and how to mend it."""
