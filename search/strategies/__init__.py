"""One algorithm = one file = one class = one `conf/search/*.yaml`."""
