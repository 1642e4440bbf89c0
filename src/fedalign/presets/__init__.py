"""Which settings does the paper use? One TOML file per preset; the file name is what `fedalign run` takes."""
