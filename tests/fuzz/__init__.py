"""What strangers send: one file for each parser at an edge, fed with what Hypothesis can think of.

``YARD_LONG=1 ./script/test tests/fuzz`` tries fifty times as many examples.
"""
