"""`antiphon demo`: a server is killed in mid-answer, and nobody loses anything.

A real server in a child process, real HTTP, a real SIGKILL; only the model is a rehearsal. `scenario`
is the story, `checks` what is proven afterwards, `tools` what the server runs, `serving` the child,
`reading` its clients, `screen` what is shown. May import everything below `cli`. Begin with `scenario`.
"""
