"""The local stack: every real part on one machine, without root, Docker or services.

``python -m deploy.local up`` and ``demo`` are the two commands; ``script/up`` and ``script/demo`` make the virtual
environment first. State lives under one folder (:mod:`deploy.local.home`). A *keeper* process owns all parts
(:mod:`deploy.local.keeper`), a *launcher* process speaks with the person (:mod:`deploy.local.launcher`): when either
dies, in whatever way, the other one takes the stack down.
"""
