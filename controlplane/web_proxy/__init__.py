"""Web ports of running parts in a browser: an ASGI application for the origins of sessions.

It has no page and no call of the dashboard, and requests reach it by their Host header alone
(:mod:`controlplane.session_origins`). A cookie of the origin lets a browser in; what it asks goes through the agent's
own connection to a port of the part, as HTTP/1.1 and WebSocket, with nothing of the dashboard in it.
"""
