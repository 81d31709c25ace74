"""The HTTP API: a client of the deployment like the command line and the SDK, for consoles and programs elsewhere.

It writes rows, rings, and answers questions by answer rows; it never speaks to a worker, and signs nothing. FastAPI and
uvicorn are imported by this package alone, and by it only when it serves.
"""
