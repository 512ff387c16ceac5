"""Problems, capabilities, registry, dispatcher. Private: plugins use ``attnhub.plugin``."""
