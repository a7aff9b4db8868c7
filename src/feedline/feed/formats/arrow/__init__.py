"""Arrow IPC, Parquet and datasets of Hugging Face."""
