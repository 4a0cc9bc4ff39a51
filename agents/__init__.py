"""The agent: one light process per host that finds devices, runs parts of attempts and reports."""

VERSION = "0.1.0"
