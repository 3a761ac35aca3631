"""Sun Grid Engine and its heirs."""
