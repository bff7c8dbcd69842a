"""HMS Push, Huawei's: the provider, and everything that is Huawei's alone."""
