"""Baselines and oracles to compare with: policies for simulations and benches that no pool may have.

An oracle knows what only a simulated world knows, and a baseline is bad on purpose. They are written, found and built
as those of :mod:`scheduler.policies` are; a profile that is switched on in a pool is refused if it names one.
"""
