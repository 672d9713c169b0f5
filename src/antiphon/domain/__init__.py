"""What things are: values only.

Responses, items, events, steps, tools, errors. No I/O, no clock, no randomness: what a value needs
from the outside world is an argument. Imports nothing of Antiphon but itself.
Begin with `steps`, then `actions`, then `errors`.
"""
