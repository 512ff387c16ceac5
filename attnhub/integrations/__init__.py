"""Adapters that let other libraries run their attention through AttnHub: each optional and thin."""
