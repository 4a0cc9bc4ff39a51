"""The router: one light process that carries requests of people to the replicas of inference services.

It imports none of the other packages; the control plane imports ``router.protocol`` only.
"""
