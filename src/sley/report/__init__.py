"""Reports: what people read about plans and runs."""
