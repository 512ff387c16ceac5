"""What measures this plugin on its user's GPU; nothing here is imported by a call."""
