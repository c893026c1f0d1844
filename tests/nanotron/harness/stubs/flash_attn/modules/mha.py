from ..flash_attn_interface import flash_attn_varlen_kvpacked_func

__all__ = ["flash_attn_varlen_kvpacked_func"]
