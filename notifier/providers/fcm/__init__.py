"""Firebase Cloud Messaging: the provider, and everything that is Google's alone."""
