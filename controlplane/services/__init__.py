"""Inference services: replicas of a stage that answer requests, kept in number, replaced, updated and measured."""
