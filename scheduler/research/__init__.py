"""Baselines and oracles for comparison: policies for simulations and benchmarks that no pool may use.

An oracle knows facts that exist only in a simulated world, and a baseline is bad on purpose. They are found and built
like those of :mod:`scheduler.policies`; a profile for a pool is refused if it names one.
"""
