"""An add-on: what each step was made of, to the trainer's loggers (`metrics: true`) or to callbacks. Open steps.py."""

from conceptloader.metrics.steps import StepMetrics, log_steps, on_step, to_prometheus

__all__ = ["StepMetrics", "log_steps", "on_step", "to_prometheus"]
