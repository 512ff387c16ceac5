"""Tests of the real model that the examples use."""
