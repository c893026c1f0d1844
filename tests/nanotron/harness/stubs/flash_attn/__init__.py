"""The few names of flash_attn that nanotron imports, in plain torch."""

from . import bert_padding
from .flash_attn_interface import flash_attn_func, flash_attn_varlen_func

__version__ = "2.6.3"
__all__ = ["bert_padding", "flash_attn_func", "flash_attn_varlen_func"]
