"""An add-on: what each step was made of, to the trainer's loggers (`metrics: true`) or to callbacks. Open steps.py."""

from conceptloader.metrics.steps import StepMetrics, on_step

__all__ = ["StepMetrics", "on_step"]
