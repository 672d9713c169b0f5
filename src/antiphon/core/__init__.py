"""What may come next: pure functions over the domain's values.

`transition` decides the next step, `assembly` turns a model's pieces into items and events, `context`
builds what a model is asked, `envelope` the Response object, `reading` requests from JSON, `sse` splits
event streams. No I/O, no clock, no randomness. May import `domain` only. Begin with `transition`.
"""
