"""What a trainer calls: a registry's records become its loader, model, plan and sharders."""

from recd_plugins.stack.stack import Stack, load

__all__ = ["Stack", "load"]
