"""An add-on: `loader: {batch_log: true}`, what each rank yields, with digests. Open record.py; trace reads it."""
